use super::*;
use crate::topology::made::Made;

fn found(files: &[(&str, &str)]) -> Vec<Conflict> {
    conflicts(Made::of(files).root())
}

fn receive(device: &str) -> Target {
    Target::of_queue(device, QueueKind::Receive, 0).unwrap()
}

#[test]
fn a_machine_without_conflicting_programs_reports_none() {
    assert_eq!(found(&[]), []);
    assert_eq!(
        found(&[("proc/7/comm", "bash\n"), ("etc/tuned/active_profile", "x\n")]),
        []
    );
}

#[test]
fn a_process_of_a_user_is_none_of_them_whatever_its_name() {
    let status = |users: &str| format!("Name:\tirqbalance\nUid:\t{users}\nGid:\t0\t0\t0\t0\n");
    let of = |users: &str| found(&[("proc/812/comm", "irqbalance\n"), ("proc/812/status", &status(users))]).len();
    assert_eq!(of("0\t0\t0\t0"), 1);
    assert_eq!(of("1000\t1000\t1000\t1000"), 0);
    assert_eq!(of("1000\t0\t0\t0"), 0);
    // As sudo, started by a link with that name.
    let machine = Made::of(&[
        ("proc/812/comm", "irqbalance\n"),
        ("proc/812/status", &status("0\t0\t0\t0")),
    ]);
    for (program, count) in [
        ("/usr/bin/sudo", 0),
        ("/usr/sbin/irqbalance", 1),
        ("/usr/sbin/irqbalance (deleted)", 1),
    ] {
        let _ = std::fs::remove_file(machine.place("proc/812/exe"));
        machine.link("proc/812/exe", program);
        assert_eq!(conflicts(machine.root()).len(), count, "{program}");
    }
    // One that has ended since its name was read.
    assert!(!is_roots(&Tree::new(Path::new("/")), u32::MAX));
}

#[test]
fn irqbalance_owns_all_interrupts_but_its_exceptions() {
    let all = found(&[("proc/812/comm", "irqbalance\n")]);
    assert_eq!(all.len(), 1);
    assert_eq!(
        all[0].what,
        "irqbalance (process 812) moves interrupts every ten seconds"
    );
    assert!(all[0].sets(&Target::Interrupt(38)) && !all[0].sets(&receive("eth0")));
    let some = found(&[
        ("proc/812/comm", "irqbalance\n"),
        (
            "proc/812/cmdline",
            "/usr/sbin/irqbalance\0--foreground\0--banirq=38\0-i\x0040\0-i41\0--banirq\x0042\0--banirq\0",
        ),
        ("proc/812/environ", "A=1\0IRQBALANCE_BANNED_INTERRUPTS=50 51\0"),
    ]);
    let spared: Vec<u32> = (30..60)
        .filter(|number| !some[0].sets(&Target::Interrupt(*number)))
        .collect();
    assert_eq!(spared, [38, 40, 41, 42, 50, 51]);
    assert!(some[0].what.ends_with("(38, 40, 41, 42, 50, 51)"), "{}", some[0].what);
}

#[test]
fn numad_is_reported_and_blocks_no_change() {
    let conflicts = found(&[("proc/77/comm", "numad\n"), ("proc/78/comm", "numadx\n")]);
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].who, Helper::Numad);
    let told = conflicts[0].to_string();
    assert!(
        told.starts_with("numad (process 77) moves processes between nodes, with their memory: ")
            && told.contains("systemctl disable --now numad"),
        "{told}"
    );
    assert!(!conflicts[0].sets(&Target::Interrupt(1)) && !conflicts[0].sets(&receive("eth0")));
}

#[test]
fn tuned_with_an_isolating_profile_is_reported() {
    let of = |profile: &str| {
        found(&[
            ("proc/9/comm", "tuned\n"),
            ("proc/10/comm", "tuned\n"),
            ("etc/tuned/active_profile", profile),
            (
                "usr/lib/tuned/balanced/tuned.conf",
                "[cpu]\ngovernor=performance\n# isolated_cores=1\n",
            ),
            ("etc/tuned/mine/tuned.conf", "[main]\ninclude=cpu-partitioning\n"),
            (
                "usr/lib/tuned/cpu-partitioning/tuned.conf",
                "[scheduler]\nisolated_cores = ${x}\n",
            ),
        ])
    };
    assert_eq!(of("balanced\n"), []);
    let conflicts = of("mine\n");
    assert_eq!(conflicts.len(), 1);
    assert_eq!(
        conflicts[0].what,
        "tuned (process 9) has the profile mine, which sets isolated_cores"
    );
    assert!(!conflicts[0].sets(&Target::Interrupt(1)));
}

#[test]
fn link_files_that_apply_to_a_card_are_reported() {
    let conflicts = found(&[
        ("sys/class/net/eth0/ifindex", "2\n"),
        ("sys/class/net/eth1/ifindex", "3\n"),
        (
            "run/udev/data/n2",
            "E:ID_NET_LINK_FILE=/etc/systemd/network/10-a.link\n",
        ),
        (
            "run/udev/data/n3",
            "E:ID_NET_LINK_FILE=/usr/lib/systemd/network/99-default.link\n",
        ),
        (
            "etc/systemd/network/10-a.link",
            "[Link]\nReceivePacketSteeringCPUMask=0-3\nCombinedChannels=4\nRxChannels=\n",
        ),
        ("etc/systemd/network/20-unused.link", "[Link]\nRxChannels=4\n"),
        ("usr/lib/systemd/network/99-default.link", "[Link]\nNamePolicy=keep\n"),
    ]);
    let what: Vec<&str> = conflicts.iter().map(|conflict| conflict.what.as_str()).collect();
    let expected = [
        "/etc/systemd/network/10-a.link sets ReceivePacketSteeringCPUMask of eth0",
        "/etc/systemd/network/10-a.link sets CombinedChannels of eth0",
    ];
    assert_eq!(what, expected);
    assert!(conflicts[0].sets(&receive("eth0")) && !conflicts[0].sets(&receive("eth1")));
    assert!(!conflicts[1].sets(&receive("eth0")));
}
