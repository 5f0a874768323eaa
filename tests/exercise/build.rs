//! What developers do: clone a repository, build a C project and run its tests.

use crate::stage::{Stage, stage};
use crate::tool;
use std::path::{Path, PathBuf};
use std::process::Command;

/// git with nothing of the user's configuration.
fn git(stage: &Stage) -> Command {
    let config = stage.at("gitconfig");
    if !config.exists() {
        std::fs::write(
            &config,
            "[user]\nname = test\nemail = test@localhost\n[safe]\ndirectory = *\n",
        )
        .unwrap();
    }
    let mut command = Command::new("git");
    command
        .env("GIT_CONFIG_GLOBAL", config)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env_remove("GIT_DIR");
    command
}

#[test]
fn a_repository_is_cloned_changed_and_packed() {
    let stage = stage!();
    let origin = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    if !origin.join(".git").exists() {
        crate::mount::skip("the sources are in no git repository");
        return;
    }
    let clone = stage.at("clone");
    tool::run(
        git(&stage)
            .args(["clone", "--quiet", "--no-local"])
            .arg(&origin)
            .arg(&clone),
    );
    let inside = || {
        let mut command = git(&stage);
        command.arg("-C").arg(&clone);
        command
    };
    tool::run(inside().args(["fsck", "--full", "--strict"]));
    assert_eq!(tool::text(&tool::run(inside().args(["status", "--porcelain"]))), "");
    for index in 0..30 {
        std::fs::write(clone.join(format!("new-{index}")), vec![b'x'; index * 1000]).unwrap();
        tool::run(inside().args(["add", "--all"]));
        tool::run(inside().args(["commit", "--quiet", "-m", &format!("change {index}")]));
    }
    tool::run(inside().args(["gc", "--quiet", "--prune=now"]));
    tool::run(inside().args(["fsck", "--full", "--strict"]));
    tool::run(inside().args(["checkout", "--quiet", "HEAD~20"]));
    assert!(clone.join("new-9").exists() && !clone.join("new-10").exists());
    assert_eq!(tool::text(&tool::run(inside().args(["status", "--porcelain"]))), "");
}

/// bzip2's own sources, as a crate among the dev-dependencies carries them.
fn sources() -> PathBuf {
    let mut command = tool::cargo();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    command
        .args(["metadata", "--format-version", "1", "--offline", "--manifest-path"])
        .arg(manifest)
        // Crates that only others need were never fetched.
        .args([
            "--filter-platform",
            &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
        ]);
    let metadata: serde_json::Value = serde_json::from_slice(&tool::run(&mut command).stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages
        .iter()
        .find(|package| package["name"] == "bzip2-sys")
        .expect("a dev-dependency");
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.with_file_name("bzip2-1.0.8")
}

#[test]
fn a_c_project_is_built_and_passes_its_tests() {
    let stage = stage!();
    let tree = stage.at("bzip2");
    tool::run(Command::new("cp").arg("-r").arg(sources()).arg(&tree));
    let make = |target: &str| {
        let mut command = Command::new("make");
        // Flags and jobs of a make around the tests are not this one's.
        command
            .env_remove("MAKEFLAGS")
            .env_remove("MFLAGS")
            .arg("-C")
            .arg(&tree)
            .args(["-j2", target]);
        command
    };
    let output = tool::run(&mut make("bzip2"));
    assert!(tool::text(&output).contains("blocksort.c"), "something was compiled");
    // `test` compresses and expands the samples and compares them with what they should be.
    let output = tool::text(&tool::run(&mut make("test")));
    assert!(output.contains("cmp sample3.tst sample3.ref"), "{output}");
    let again = tool::text(&tool::run(&mut make("bzip2")));
    assert!(again.contains("up to date"), "times are off: make builds anew: {again}");
    let touch = tree.join("huffman.c");
    tool::run(Command::new("touch").arg(touch));
    let partly = tool::text(&tool::run(&mut make("bzip2")));
    assert!(
        partly.contains("huffman.c") && !partly.contains("blocksort.c"),
        "{partly}"
    );
}
