//! `homenode affinity explain`.

use super::harness::*;
use super::machine;

fn explain(target: &str) -> std::process::Command {
    affinity(["explain", target].into_iter().chain(machine::from()))
}

#[track_caller]
fn tells(target: &str, parts: &[&str]) {
    says(&shown(&mut explain(target)), parts);
}

#[test]
fn explain_shows_a_thread() {
    let parts = [
        "thread 701 (fio-job of fio)\n",
        "on CPU 6 (node 3); may run on 0-7, all of its cpuset",
        "busy      20 % of a CPU",
        "300.0 MB/s from and to ",
        "goes from 0-7 to 2-3: fio-job is disk-bound: to node 1",
        "165.0 MB/s now, 0.0 MB/s after",
    ];
    tells("thread:701", &parts);
    tells("701", &parts);
    let pinned = [
        "may run on 6 of its cpuset 0-7",
        "stays: someone else has narrowed its mask",
        "110.0 MB/s\n",
    ];
    tells("702", &pinned);
    // Nothing counted what the threads of this machine sent and received.
    let unread = [
        "unknown   not all of its bytes are readable",
        "stays: bytes not readable (not root",
    ];
    tells("800", &unread);
}

#[test]
fn explain_shows_buffers_of_a_thread_and_files_that_move_to_it() {
    let explained = |target: &str, more: &[&str]| {
        let arguments = ["explain", target].into_iter().chain(machine::with_pool());
        shown(&mut affinity(arguments.chain(more.iter().copied())))
    };
    let text = explained("702", &[]);
    says(
        &text,
        &[
            "copies    500.0 MB/s from and to buffers of pools (node 0, at distance ",
            "of        file 17 of pool 0:45, 500.0 MB/s\n",
            "plan      that file goes to node 3, where it stays also after `revert`: a thread on node 3 uses it",
            "stays: someone else has narrowed its mask",
        ],
    );
    let text = explained("800", &[]);
    says(&text, &["100.0 MB/s from and to buffers of pools (node 1, the same)"]);
    let json: serde_json::Value = serde_json::from_str(&explained("702", &["--json"])).unwrap();
    let seen = &json["found"][0]["seen"];
    assert_eq!(seen["memory"], serde_json::json!([{"node": 0, "bytes": 1_000_000_000}]));
    assert_eq!(
        (&seen["files"][0]["inode"], &seen["files"][0]["action"]["to_node"]),
        (&17.into(), &3.into())
    );
}

#[test]
fn explain_lists_all_threads_of_a_process_or_name() {
    let threads = [
        "thread 700 (fio)\n",
        "thread 701 (fio-job of fio)\n",
        "thread 702 (fio-pinned of fio)\n",
    ];
    tells("700", &threads);
    tells("fio", &threads);
    tells("fio-job", &threads[1..2]);
}

#[test]
fn explain_shows_an_interrupt() {
    let parts = [
        "interrupt 51 (virtio2-input.0)\n",
        "device    eth0 (node 3)",
        "serves    eth0/rx-0",
        "arrives on 0 (node 0), may on 0-7\n",
        "40000 on CPU 0 (node 0)",
        "33.0 MB/s now, 0.0 MB/s after",
    ];
    tells("irq:51", &parts);
    tells(
        "interrupt:37",
        &[
            "as the kernel has spread it",
            "stays: the kernel spreads this interrupt itself",
        ],
    );
}

#[test]
fn explain_shows_queues_and_devices() {
    let sends = [
        "eth0/tx-0 (transmit queue)\n",
        "CPUs 0-7 (nodes 0, 1, 2, 3) send through it (XPS)",
        "from 0-7 to 6-7",
    ];
    tells("eth0/tx-0", &sends);
    tells(
        "eth0/rx/1",
        &[
            "processed where the interrupt arrives",
            "53, arrives on 0 (node 0)",
            "4 of the table's 4 entries send packets here",
            "advice    eth0: busy, and its RSS table sends packets to 1 of its 2 queues: type `ethtool -X eth0 default`",
            "stays: ",
        ],
    );
    tells(
        "nvme0n1/6",
        &[
            "device    nvme0n1 (node 1)",
            "CPUs 6 (node 3) submit to it",
            "interrupt 37, ",
        ],
    );
    tells("eth0", &["interrupt 51 (", "eth0/rx-0 (", "eth0/tx-1 ("]);
}

#[test]
fn explain_json_has_the_same_facts_as_the_text() {
    let explained = |target: &str| -> serde_json::Value {
        let text = shown(explain(target).arg("--json"));
        serde_json::from_str(&text).unwrap()
    };
    let of_plan: serde_json::Value = {
        let arguments = ["plan", "--json"].into_iter().chain(machine::from());
        serde_json::from_str(&shown(&mut affinity(arguments))).unwrap()
    };
    let one = explained("701");
    assert_eq!(
        (&one["output_version"], &one["period_ns"]),
        (&1.into(), &2_000_000_000_u64.into())
    );
    assert_eq!(one["source"], machine::recording().to_str().unwrap());
    assert_eq!(one["unseen"], of_plan["unseen"]);
    let thread = &one["found"][0];
    assert_eq!(thread["seen"]["disk"][0]["bytes"], 600_000_000);
    assert_eq!(
        (&thread["seen"]["cpu"], &thread["seen"]["node"]),
        (&6.into(), &3.into())
    );
    assert_eq!(
        (&thread["name"], &thread["stay"]),
        (&"fio-job of fio".into(), &().into())
    );
    assert_eq!(thread["action"], of_plan["actions"][0]);
    let all = explained("eth0");
    let kinds: Vec<&str> = all["found"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["target"]["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds[..5],
        ["interrupt", "interrupt", "interrupt", "interrupt", "receive"]
    );
    assert_eq!(all["found"][0]["seen"]["arrivals"][0]["count"], 40_000);
    let disk = &explained("nvme0n1/6")["found"][0];
    assert_eq!(
        disk["target"],
        serde_json::json!({"kind": "block", "device": "nvme0n1", "index": 6})
    );
    assert_eq!((&disk["seen"]["interrupt"], &disk["stay"]), (&37.into(), &().into()));
    assert_eq!(explained("800")["found"][0]["stay"]["why"], "unread");
    refused(explain("4711").arg("--json"), 1, &["no thread or process 4711"]);
}

#[test]
fn explain_refuses_missing_targets() {
    for (target, parts) in [
        ("4711", ["no thread or process 4711", "in 2.0 s"]),
        ("irq:4711", ["no interrupt 4711", "/proc/interrupts"]),
        (
            "eth0/tx-9",
            ["eth0 has no such queue", "eth0/rx-0, eth0/rx-1, eth0/tx-0"],
        ),
        ("eth9/tx-0", ["no disk or card eth9", "homenode topology"]),
        ("nobody\u{1b}", ["is named nobody\\u{1b}", "no device"]),
    ] {
        refused(&mut explain(target), 1, &parts);
    }
    for target in ["irq:x", "eth0/ab-1", ""] {
        refused(&mut explain(target), 2, &["irq:38", "eth0/tx-0"]);
    }
}

#[test]
fn explain_shows_an_idle_thread_of_this_machine() {
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let text = shown(&mut affinity(["explain", &sleeper.id().to_string(), BRIEFLY]));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(
        text.starts_with(&format!("thread {} did nothing in ", sleeper.id())),
        "{text}"
    );
}
