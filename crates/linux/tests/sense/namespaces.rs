//! Network namespaces of a test.

use homenode_policy::CpuId;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

/// Two network namespaces with a pair of interfaces between them. They go when this does.
pub(crate) struct Namespaces {
    pub(crate) names: [String; 2],
}

pub(crate) const ADDRESSES: [&str; 2] = ["198.18.77.1", "198.18.77.2"];
pub(crate) const ADDRESSES_V6: [&str; 2] = ["fd77::1", "fd77::2"];

/// The far end's, and ours.
pub(crate) const OWN_ADDRESSES: [&str; 2] = ["198.18.78.1", "198.18.78.2"];

pub(crate) fn has_v6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

impl Namespaces {
    pub(crate) fn new() -> Self {
        let names = ["a", "b"].map(|end| format!("homenode-{}-{end}", std::process::id()));
        let made = Self { names };
        let [a, b] = &made.names;
        made.names.iter().for_each(|name| ip(&format!("netns add {name}")));
        ip(&format!(
            "link add veth0 numrxqueues 2 numtxqueues 2 netns {a} type veth peer name veth0 numrxqueues 2 numtxqueues 2 netns {b}"
        ));
        for (end, name) in made.names.iter().enumerate() {
            ip(&format!("-n {name} address add {}/24 dev veth0", ADDRESSES[end]));
            if has_v6() {
                ip(&format!(
                    "-n {name} address add {}/64 dev veth0 nodad",
                    ADDRESSES_V6[end]
                ));
            }
            ip(&format!("-n {name} link set veth0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        made
    }

    /// A card of this process's own namespace, whose other end is in the first one; it goes with that. Between them are the
    /// addresses of [`OWN_ADDRESSES`].
    pub(crate) fn own_card(&self) -> String {
        let [there, _] = &self.names;
        let card = format!("hn{}", std::process::id());
        ip(&format!(
            "link add {card} numrxqueues 2 numtxqueues 2 type veth peer name veth1 numrxqueues 2 numtxqueues 2 netns {there}"
        ));
        for (of, device, address) in [
            (&[][..], &*card, OWN_ADDRESSES[1]),
            (&["-n", there], "veth1", OWN_ADDRESSES[0]),
        ] {
            let prefix = of.iter().map(|word| format!("{word} ")).collect::<String>();
            ip(&format!("{prefix}address add {address}/24 dev {device}"));
            ip(&format!("{prefix}link set {device} up"));
        }
        // A veth notes no queue of its own: the kernel takes the number of the sending one, less one, for it, and none for 0.
        let cpus = homenode_linux::cpu::allowed_cpus().unwrap();
        let all: u64 = cpus.iter().map(|cpu| 1 << cpu.0).sum();
        self.sh(0, "echo 0 >/sys/class/net/veth1/queues/tx-0/xps_cpus");
        self.sh(0, &format!("echo {all:x} >/sys/class/net/veth1/queues/tx-1/xps_cpus"));
        card
    }

    /// Has packets that come in at one end processed on this CPU.
    pub(crate) fn steer(&self, end: usize, cpu: CpuId) {
        let command = format!(
            "for f in /sys/class/net/veth0/queues/rx-*/rps_cpus; do echo {:x} >$f; done",
            1 << cpu.0
        );
        self.sh(end, &command);
    }

    fn sh(&self, end: usize, command: &str) {
        let netns = ["netns", "exec", &self.names[end], "sh", "-ec", command];
        let output = Command::new("ip").args(netns).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // They may be incomplete when the test failed early.
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

/// Takes the calling thread into a namespace.
pub(crate) fn enter(name: &str) {
    let file = File::open(format!("/run/netns/{name}")).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}
