//! `homenode affinity plan`.

use super::harness::*;
use super::machine;
use serde_json::{Value, json};

fn planned(more: &[&str]) -> String {
    let arguments = ["plan"]
        .iter()
        .chain(&machine::from())
        .chain(more)
        .copied()
        .collect::<Vec<_>>();
    shown(&mut affinity(arguments))
}

#[test]
fn a_plan_begins_with_the_gain() {
    let text = planned(&[]);
    let first = text.lines().next().unwrap();
    let expected = "1 of 4 threads, 4 of 12 interrupts and 2 of 4 queues move: 231.0 MB/s less remote traffic \
                    and overload (341.0 MB/s now, 110.0 MB/s after)";
    assert_eq!(first, expected);
    let line = |what: &str| {
        text.lines()
            .find(|line| line.starts_with(what))
            .unwrap_or_else(|| panic!("{what}: {text}"))
    };
    let moved = line("thread 701 (fio-job of fio)");
    says(
        moved,
        &[
            "  0-7 ",
            "  2-3 ",
            "165.0 MB/s -> 0.0 MB/s",
            "near the queues of nvme0n1",
        ],
    );
    assert!(line("interrupt 51 (virtio2-input.0)").contains("near it, to node 3"));
    assert!(line("transmit queue 0 of eth0").contains("  6-7 "));
    assert!(line("  8 interrupts").contains("the kernel spreads"), "{text}");
    assert!(line("could not be seen:").ends_with(':'));
    let advice = "commands for you to run:\n  eth0: busy, and its RSS table sends packets to 1 of its 2 queues: type \
                  `ethtool -X eth0 default`\n";
    assert!(text.contains(advice), "{text}");
}

#[test]
fn unmoved_targets_are_listed_on_request() {
    let text = planned(&["--all"]);
    let stays = |what: &str| text.lines().any(|line| line.starts_with(what));
    assert!(
        stays("thread 702 (fio-pinned of fio)") && stays("interrupt 37 (nvme0q7)") && stays("receive queue 1 of eth0")
    );
    // A thread may be called anything; a terminal gets no commands.
    assert!(
        stays("thread 800 (cruncher\\u{1b}[2J)") && !text.contains('\u{1b}'),
        "{text}"
    );
}

#[test]
fn plan_json_has_moves_and_unmoved_targets() {
    let plan: Value = serde_json::from_str(&planned(&["--json"])).unwrap();
    assert_eq!((&plan["output_version"], &plan["policy"]), (&json!(1), &json!("local")));
    assert_eq!(plan["source"], machine::recording().to_str().unwrap());
    assert_eq!(plan["cost_before_bytes_per_s"], 341_000_000);
    let actions = plan["actions"].as_array().unwrap();
    assert_eq!(actions.len(), 7);
    let expected = json!({"kind": "thread", "process": 700, "thread": 701, "started": 5000});
    assert_eq!(actions[0]["target"], expected);
    assert_eq!(
        (&actions[0]["to"], &actions[0]["reason"]),
        (&json!([2, 3]), &json!("near-queues"))
    );
    let stays = plan["stays"].as_array().unwrap();
    assert_eq!(stays.len(), 13);
    let pinned = stays.iter().find(|stay| stay["target"]["thread"] == 702).unwrap();
    assert_eq!(
        (&pinned["why"], &pinned["name"]),
        (&json!("foreign"), &json!("fio-pinned of fio"))
    );
    let cruncher = stays.iter().find(|stay| stay["target"]["thread"] == 800).unwrap();
    assert_eq!(cruncher["why"], "unread");
    assert!(!plan["unseen"].as_array().unwrap().is_empty());
    let advice = json!({
        "device": "eth0",
        "why": "busy, and its RSS table sends packets to 1 of its 2 queues",
        "command": "ethtool -X eth0 default",
    });
    assert_eq!(plan["advice"], json!([advice]));
}

#[test]
fn threads_go_to_their_buffers_and_a_file_to_one_that_is_pinned() {
    let with = |more: &[&str]| {
        shown(&mut affinity(
            ["plan"].iter().chain(&machine::with_pool()).chain(more).copied(),
        ))
    };
    let text = with(&[]);
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with("2 of 4 threads, 4 of 12 interrupts, 2 of 4 queues and 1 file move: "),
        "{first}"
    );
    let line = |what: &str| {
        text.lines()
            .find(|line| line.starts_with(what))
            .unwrap_or_else(|| panic!("{what}: {text}"))
    };
    let moved = line("thread 800");
    assert!(
        moved.ends_with("its buffers are on node 2: 90 % of 1.0 GB/s"),
        "{moved}"
    );
    says(moved, &["  4-5 "]);
    let file = line("file 17 of pool 0:45");
    says(
        file,
        &[
            "  8 MiB elsewhere ",
            "  node 3 ",
            "550.0 MB/s -> 0.0 MB/s",
            "a thread on node 3 uses it and cannot move: 500.0 MB/s cross nodes; `revert` leaves it there",
        ],
    );
    assert!(line("  reads that the page cache serves").ends_with("it is not asked"));
    let plan: Value = serde_json::from_str(&with(&["--json"])).unwrap();
    let file = &plan["files"][0];
    assert_eq!(
        (&file["pool"], &file["inode"], &file["to_node"], &file["reason"]),
        (&json!("0:45"), &json!(17), &json!(3), &json!("threads-held"))
    );
    let actions = plan["actions"].as_array().unwrap();
    assert!(
        actions.iter().any(|action| action["reason"] == "near-buffers"),
        "{actions:?}"
    );
}

#[test]
fn policies_are_taken_from_the_command_line() {
    let text = planned(&["--policy", "off"]);
    assert!(
        text.starts_with("nothing to move: 4 threads, 12 interrupts and 4 queues looked at for 2.0 s\n"),
        "{text}"
    );
    assert!(text.contains("left alone by the configuration"), "{text}");
    let text = planned(&["--policy=spread"]);
    assert!(text.contains("policy spread puts fio-job there"), "{text}");
    refused(&mut affinity(["plan", "--policy=fast"]), 2, &["fast", "single-core"]);
    for period in ["0", "x", "4000", "-1"] {
        refused(&mut affinity(["plan", &format!("--period={period}")]), 2, &["--period"]);
    }
    refused(
        &mut affinity(["plan", "--period=1", "--from=/x"]),
        2,
        &["--from", "cannot be used"],
    );
}

#[test]
fn any_user_can_plan_this_machine() {
    let text = shown(&mut affinity(["plan", BRIEFLY]));
    assert!(
        text.lines().next().unwrap().contains(" looked at for ") || text.contains(" move"),
        "{text}"
    );
    let Some(output) = as_nobody(&["plan", BRIEFLY]) else {
        return;
    };
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = super::harness::text(output.stdout);
    assert!(!text.contains("compute-bound"), "{text}");
    says(
        &text,
        &[
            "could not be seen:\n",
            "root may read them",
            "bytes not readable (not root",
        ],
    );
}
