//! SQLite: transactions of two processes, one of them killed in the middle, and every acknowledged row still there.

use crate::stage::stage;
use crate::tool;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Of the writer that lives to its end.
const TRANSACTIONS: u32 = 400;
/// The other has no end and is killed somewhere behind this many.
const BEFORE_DEATH: usize = 100;

fn query(database: &Path, sql: &str) -> String {
    tool::text(&tool::run(
        Command::new("sqlite3")
            .args(["-cmd", ".timeout 60000"])
            .arg(database)
            .arg(sql),
    ))
}

/// A process that makes one transaction after another and tells of each when it is done.
fn writer(database: &Path, name: &str, transactions: u32) -> Child {
    let mut child = Command::new("sqlite3")
        .args(["-batch", "-cmd", ".timeout 60000"])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("package sqlite3");
    let mut input = child.stdin.take().unwrap();
    let name = name.to_owned();
    std::thread::spawn(move || {
        for index in 1..=transactions {
            let sql = format!(
                "BEGIN IMMEDIATE;
                 INSERT INTO entry VALUES ('{name}', {index}, randomblob(abs(random()) % 20000));
                 UPDATE account SET balance = balance - {index} WHERE name = 'a';
                 UPDATE account SET balance = balance + {index} WHERE name = 'b';
                 DELETE FROM entry WHERE writer = '{name}' AND number % 10 = 0 AND number < {index} - 5;
                 COMMIT;
                 SELECT 'done {index}';\n"
            );
            if input.write_all(sql.as_bytes()).is_err() {
                break; // It has been killed.
            }
        }
    });
    child
}

/// Reads acknowledgements: up to `count`, or to the end.
fn acknowledged(lines: &mut impl Iterator<Item = std::io::Result<String>>, count: usize) -> usize {
    lines
        .take(count)
        .filter(|line| line.as_ref().is_ok_and(|line| line.starts_with("done ")))
        .count()
}

fn survives(mode: &str) {
    let stage = stage!();
    let database = stage.at("database");
    let setup = format!(
        "PRAGMA journal_mode={mode};
         CREATE TABLE entry (writer TEXT, number INTEGER, content BLOB, PRIMARY KEY (writer, number));
         CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER);
         INSERT INTO account VALUES ('a', 1000000), ('b', 0);"
    );
    assert_eq!(query(&database, &setup), mode);
    let (mut steady, mut victim) = (
        writer(&database, "steady", TRANSACTIONS),
        writer(&database, "victim", u32::MAX),
    );
    let mut steady_lines = BufReader::new(steady.stdout.take().unwrap()).lines();
    let mut victim_lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut done = acknowledged(&mut victim_lines, BEFORE_DEATH);
    victim.kill().unwrap();
    done += acknowledged(&mut victim_lines, usize::MAX);
    victim.wait().unwrap();
    assert_eq!(acknowledged(&mut steady_lines, usize::MAX), TRANSACTIONS as usize);
    assert!(steady.wait().unwrap().success());
    assert_eq!(query(&database, "PRAGMA integrity_check"), "ok");
    let last = |name: &str| -> usize {
        query(
            &database,
            &format!("SELECT max(number) FROM entry WHERE writer = '{name}'"),
        )
        .parse()
        .unwrap()
    };
    assert_eq!(last("steady"), TRANSACTIONS as usize);
    // One may be committed whose acknowledgement was still in the pipe.
    assert!(
        (done..=done + 1).contains(&last("victim")),
        "{} rows, {done} acknowledged",
        last("victim")
    );
    let moved: usize = ["steady", "victim"]
        .map(|name| (1..=last(name)).sum::<usize>())
        .iter()
        .sum();
    let balances = query(&database, "SELECT balance FROM account ORDER BY name");
    assert_eq!(
        balances,
        format!("{}\n{moved}", 1_000_000 - moved),
        "half a transaction is there"
    );
    query(&database, "VACUUM");
    assert_eq!(query(&database, "PRAGMA integrity_check"), "ok");
}

#[test]
fn sqlite_works_with_a_write_ahead_log() {
    survives("wal");
}

#[test]
fn sqlite_works_with_a_rollback_journal() {
    survives("delete");
}

#[test]
fn sqlite_works_with_a_truncated_journal() {
    survives("truncate");
}
