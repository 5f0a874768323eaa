//! The configuration as people get it wrong, and what it does when it is right.

use super::harness::*;
use super::machine;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

struct File(tempfile::TempDir);

impl File {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("affinity.toml"), text).unwrap();
        Self(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("affinity.toml")
    }

    fn plan(&self) -> Command {
        let mut command = affinity(["plan"].into_iter().chain(machine::from()));
        command.arg("--config").arg(self.path());
        command
    }
}

#[test]
fn the_configuration_is_followed() {
    let file = File::new("[devices]\neth0 = \"off\"\n[processes]\nfio = \"single-core\"\n");
    let text = shown(&mut file.plan());
    assert!(
        text.starts_with("1 of 4 threads moves: 165.0 MB/s less remote"),
        "{text}"
    );
    assert!(text.contains("policy single-core puts fio-job there"), "{text}");
    let text = shown(file.plan().arg("--all"));
    assert!(text.contains("the configuration says that it is left alone"), "{text}");
}

#[test]
fn a_missing_configured_device_is_reported() {
    let output = File::new("[devices]\neht0 = \"off\"\n").plan().output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty());
    let said = text(output.stderr);
    assert!(said.contains("eht0") && said.lines().count() == 1, "{said}");
}

#[test]
fn configuration_errors_name_file_and_line() {
    let file = File::new("# mine\npolicy = \"locl\"\n");
    refused(
        &mut file.plan(),
        1,
        &[file.path().to_str().unwrap(), "line 2", "`locl`"],
    );
    refused(
        &mut affinity(["plan", "--config=/nonexistent.toml"]),
        1,
        &["/nonexistent.toml", "No such file"],
    );
    refused(
        &mut affinity(["explain", "1", "--config=/"]),
        1,
        &["cannot read the configuration /", "directory"],
    );
}
