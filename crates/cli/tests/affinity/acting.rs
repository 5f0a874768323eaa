//! `homenode affinity apply`, `revert` and what `explain` tells in between.

use super::harness::*;
use super::load::{self, Load, mask};
use std::fs;

const LONG_ENOUGH: &str = "--period=1";

/// Returns the text of the `apply` that moved the load. On a busy machine `apply` may do nothing for a whole period.
fn applied(load: &Load) -> String {
    let mut text = String::new();
    load::wait_until("moved", || {
        text = shown(&mut load.affinity(&["apply", LONG_ENOUGH]));
        load.is_moved()
    });
    text
}

#[test]
fn applied_changes_are_explained_and_reverted() {
    let Some(load) = Load::start() else { return };
    let (before, id) = (load.mask(), load.id());
    let text = applied(&load);
    assert!(
        text.starts_with("1 of ") && text.contains(&format!("\nthread {id} (")),
        "{text}"
    );
    says(
        &text,
        &[
            "  done  ",
            &format!(
                "1 of 1 changes made; `homenode affinity revert --journal {}`",
                load.journal().display()
            ),
        ],
    );
    assert!(load.is_moved(), "{}", load.mask());
    // Viewers look at the default journal.
    let state = tempfile::tempdir().unwrap();
    fs::copy(load.journal(), state.path().join("affinity.journal")).unwrap();
    let changes_seen = || {
        let mut top = std::process::Command::new(env!("CARGO_BIN_EXE_homenode"));
        let told = shown(top.args(["top", "--json"]).env("STATE_DIRECTORY", state.path()));
        serde_json::from_str::<serde_json::Value>(&told).unwrap()["affinity_changes"].clone()
    };
    assert_eq!(changes_seen(), 1);

    let child = load.fork();
    let text = shown(&mut load.affinity(&["explain", &id.to_string(), LONG_ENOUGH]));
    let set = format!(
        "by homenode affinity to {}; it had {before}, which `revert` gives back",
        load.mask()
    );
    says(&text, &[&set, "stays: it is where policy single-core wants it"]);
    let text = shown(&mut load.affinity(&["apply", LONG_ENOUGH]));
    assert!(text.starts_with("nothing to move: "), "{text}");

    let text = shown(&mut load.affinity(&["revert"]));
    assert!(
        text.starts_with("2 values restored\n") && text.contains(&format!("\n  thread {id} (hn")),
        "{text}"
    );
    says(
        &text,
        &[
            &format!("thread {child} ("),
            "), which has inherited its mask: restored",
        ],
    );
    assert_eq!((load.mask(), mask(child)), (before.clone(), before));
    assert_eq!(changes_seen(), 0, "the change is no longer in force");
    let text = shown(&mut load.affinity(&["revert"]));
    assert!(text.starts_with("nothing to revert: there is no journal "), "{text}");
}

#[test]
fn json_has_the_outcome_of_each_action() {
    let Some(load) = Load::start() else { return };
    let mut text = String::new();
    load::wait_until("moved", || {
        text = shown(&mut load.affinity(&["apply", LONG_ENOUGH, "--json"]));
        load.is_moved()
    });
    let applied: serde_json::Value = serde_json::from_str(&text).unwrap();
    let looks = applied["looks"].as_array().unwrap();
    assert_eq!(
        (&applied["output_version"], &looks[0]["source"]),
        (&1.into(), &"live".into())
    );
    let mut actions = looks.iter().map(|look| &look["actions"][0]);
    let action = actions.find(|action| action.is_object()).unwrap();
    assert_eq!(action["target"]["thread"], load.id());
    assert_eq!(
        action["outcome"],
        serde_json::json!({"code": "done", "text": "done", "is_done": true})
    );
    let text = shown(&mut load.affinity(&["explain", &load.id().to_string(), LONG_ENOUGH, "--json"]));
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    if let Some(found) = told["found"].get(0) {
        assert_eq!(found["set"]["to"], action["to"], "{found}");
    }
    shown(&mut load.affinity(&["revert"]));
}

#[test]
fn values_that_another_program_changed_are_not_reverted() {
    let Some(load) = Load::start() else { return };
    applied(&load);
    let other = if load.mask() == "0" { "1" } else { "0" };
    let status = std::process::Command::new("taskset")
        .args(["-p", "-c", other, &load.id().to_string()])
        .output();
    assert!(status.unwrap().status.success());
    let text = shown(&mut load.affinity(&["revert"]));
    assert!(text.starts_with("0 values restored; 1 left alone"), "{text}");
    says(&text, &["another program has set"]);
    assert_eq!(load.mask(), other);
}

#[test]
fn a_foreign_or_damaged_journal_is_refused_and_kept() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    applied(&load);
    let journal = load.journal();
    let ours = fs::read_to_string(&journal).unwrap();
    let path = journal.to_str().unwrap();
    for (text, problem) in [
        ("root:x:0:0:root:/root:/bin/bash\n".to_owned(), "is no journal"),
        (String::new(), "is empty"),
        (ours.replace("\"to\":[", "\"to\":[7,"), "is damaged: line 2"),
    ] {
        fs::write(&journal, &text).unwrap();
        for verb in [&["revert"][..], &["apply", BRIEFLY], &["run"]] {
            refused(&mut load.affinity(verb), 1, &[path, problem]);
        }
        let output = load.affinity(&["plan", BRIEFLY]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = super::harness::text(output.stderr);
        says(&said, &[problem, "count as another program's"]);
        assert_eq!(fs::read_to_string(&journal).unwrap(), text);
    }
    fs::write(&journal, ours).unwrap();
    shown(&mut load.affinity(&["revert"]));
    assert_eq!(load.mask(), before);
}

#[test]
fn a_journal_with_a_cut_last_line_is_reported() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    applied(&load);
    let whole = fs::read(load.journal()).unwrap();
    fs::write(load.journal(), &whole[..whole.len() - 1]).unwrap();
    let output = load.affinity(&["revert"]).output().unwrap();
    let (said, warned) = (text(output.stdout), text(output.stderr));
    assert_eq!(said, "nothing was to be restored\n", "{warned}");
    let thread = format!("\"thread\":{},", load.id());
    says(&warned, &["is cut, and is not used", "set it by hand", &thread]);
    assert!(load.is_moved());
    fs::write(load.journal(), whole).unwrap();
    shown(&mut load.affinity(&["revert"]));
    assert_eq!(load.mask(), before);
}

#[test]
fn an_unwritable_journal_fails_before_any_change() {
    let _alone = alone();
    refused(
        &mut affinity(["apply", BRIEFLY, "--journal=/proc/journal"]),
        1,
        &[
            "/proc/journal",
            "nothing is changed without",
            "another one can be named (--journal FILE)",
        ],
    );
    let Some(output) = as_nobody(&["apply", BRIEFLY, "--journal=/nowhere/journal"]) else {
        return;
    };
    let said = text(output.stderr);
    assert!(output.status.code() == Some(1), "{said}");
    says(&said, &["/nowhere/journal", "run it as root"]);
}

/// A small file system of its own, in a namespace of mounts that nobody else sees.
fn on_a_file_system(load: &Load, script: &str) -> (String, String) {
    let mut affinity = load.affinity(&["VERB"]);
    let arguments: Vec<_> = affinity
        .get_args()
        .skip(2)
        .map(|it| it.to_str().unwrap().to_owned())
        .collect();
    affinity = std::process::Command::new("unshare");
    affinity.args(["--mount", "sh", "-c"]);
    let state = load.journal().parent().unwrap().to_str().unwrap().to_owned();
    fs::create_dir_all(&state).unwrap();
    let revert = format!("'{BINARY}' affinity revert {}", arguments[..2].join(" "));
    let apply = format!("'{BINARY}' affinity apply {LONG_ENOUGH} {}", arguments.join(" "));
    affinity.arg(format!(
        "mount -t tmpfs -o size=16k homenode-test '{state}' && cd '{state}' || exit\n\
         apply() {{ {apply}; }}\nrevert() {{ {revert}; }}\n{script}"
    ));
    let output = affinity.output().unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn on_a_full_disk_nothing_is_moved() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    let script = "head -c 100000 /dev/zero > rest 2> /dev/null\n\
                  for i in 1 2 3 4 5; do apply || { echo failed $?; break; }; done; ls";
    let (said, warned) = on_a_file_system(&load, script);
    says(
        &warned,
        &["No space left on device", "make room there: no change stands"],
    );
    assert!(said.ends_with("failed 1\njournal.lock\nrest\n"), "{said}");
    assert_eq!(load.mask(), before);
}

/// A read-only file system, as after an error of its disk.
#[test]
fn a_read_only_journal_is_reverted() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    let script = "for i in 1 2 3 4 5; do apply; test -e journal && break; done\n\
                  mount -o remount,ro \"$PWD\"; echo now; revert; echo failed $?";
    let (said, warned) = on_a_file_system(&load, script);
    assert!(
        said.ends_with("failed 1\n") && said.contains("now\n1 value restored\n"),
        "{said}{warned}"
    );
    says(
        &warned,
        &[
            "all values are restored, but cannot remove",
            "Read-only file system",
            "make that file system writable",
        ],
    );
    assert!(
        !warned.contains("nothing is changed") && !warned.contains("--journal"),
        "the message offers another journal: {warned}"
    );
    assert_eq!(load.mask(), before);
}

/// Whatever bears its name: here a process that sleeps.
#[test]
fn irqbalance_is_reported_unless_overridden() {
    let Some(load) = Load::start() else { return };
    let fake = load.path().join("irqbalance");
    fs::copy("/bin/sleep", &fake).unwrap();
    let mut process = std::process::Command::new(&fake).arg("60").spawn().unwrap();
    let others = |settings: &str| {
        fs::write(load.config(), format!("policy = \"off\"\n{settings}")).unwrap();
        let plan = shown(&mut load.affinity(&["plan", BRIEFLY, "--json"]));
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        plan["conflicts"].to_string()
    };
    // It is called what it is called once it runs.
    load::wait_until("irqbalance", || {
        fs::read(format!("/proc/{}/comm", process.id())).unwrap() == b"irqbalance\n"
    });
    let (respected, overridden) = (others(""), others("irqbalance = \"override\"\n"));
    let text = shown(&mut load.affinity(&["plan", BRIEFLY]));
    process.kill().unwrap();
    process.wait().unwrap();
    says(&respected, &["irqbalance (process ", "systemctl stop"]);
    assert!(!overridden.contains("irqbalance"), "{overridden}");
    assert!(!text.contains("irqbalance (process "), "{text}");
}

/// Bytes of root's threads are shown to root only, so there is nothing that nobody would move.
#[test]
fn apply_without_rights_moves_nothing_and_tells_why() {
    let Some(load) = Load::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::copy(load.config(), place("affinity.toml")).unwrap();
    fs::create_dir(place("state")).unwrap();
    std::os::unix::fs::chown(place("state"), Some(65534), Some(65534)).unwrap();
    make_public(directory.path());
    let (config, journal) = (place("affinity.toml"), place("state/journal"));
    let output = as_nobody(&["apply", LONG_ENOUGH, "--config", &config, "--journal", &journal]).unwrap();
    let said = text(output.stdout);
    assert!(
        output.status.success() && said.starts_with("nothing to move: "),
        "{said}"
    );
    assert!(said.contains("root may read them"), "{said}");
    assert!(!load.is_moved());
}
