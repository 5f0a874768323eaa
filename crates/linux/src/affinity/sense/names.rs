//! Parses the names of interrupts: the queue that an interrupt serves, and whether the kernel has spread it itself.
//!
//! Every driver names its interrupts its own way. The number at the end counts queues; the word before says of which kind.

/// The queue that an interrupt serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A disk's.
    Block(u32),
    /// A card's queue of packets received.
    Receive(u32),
    /// A card's queue of packets to send.
    Transmit(u32),
    /// Both queues of a card with this number.
    Both(u32),
}

type MakeRole = fn(u32) -> Role;

/// Words before the number, in lower case, and who names interrupts so. The first that fits counts.
const WORDS: [(&str, MakeRole); 13] = [
    // virtio_blk: virtio1-req.0
    ("-req.", Role::Block),
    // virtio_net: virtio2-input.0, virtio2-output.0
    ("-input.", Role::Receive),
    ("-output.", Role::Transmit),
    // igb, ixgbe, bnxt_en: eth0-TxRx-3; i40e, ice, iavf: i40e-eth0-TxRx-7
    ("-txrx-", Role::Both),
    // ena: eth0-Tx-Rx-3
    ("-tx-rx-", Role::Both),
    // vmxnet3: eth0-rxtx-3
    ("-rxtx-", Role::Both),
    // bnx2x, qede: eth0-fp-3
    ("-fp-", Role::Both),
    // mlx5: mlx5_comp3@pci:0000:3b:00.0
    ("mlx5_comp", Role::Both),
    // mlx4: mlx4-3@0000:3b:00.0
    ("mlx4-", Role::Both),
    // e1000e, igb and others with interrupts by direction: eth0-rx-0, eth0-tx-0
    ("-rx-", Role::Receive),
    ("-tx-", Role::Transmit),
    // hisilicon hns3: hns3-0000:7d:00.0-TxRx-3 is above; cavium and atlantic: eth0-rx0, eth0-tx0
    ("-rx", Role::Receive),
    ("-tx", Role::Transmit),
];

/// The queue that the interrupt of this name serves. None for what serves no queue (configuration, events), and for
/// drivers whose names are not known here.
pub(super) fn role(name: &str) -> Option<Role> {
    if let Some(queue) = nvme_queue(name) {
        // Queue 0 carries commands to the controller; the kernel counts queues of requests from 0.
        return Some(Role::Block(queue.checked_sub(1)?));
    }
    let name = name.split('@').next().unwrap_or(name).to_ascii_lowercase();
    let word_end = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (word, number) = name.split_at(word_end);
    let number = number.parse().ok()?;
    let (_, make) = WORDS.iter().find(|(end, _)| word.ends_with(end))?;
    Some(make(number))
}

/// The names of an interrupt that several share: `nvme0q0, nvme0q1`.
pub(super) fn parts(name: &str) -> impl Iterator<Item = &str> {
    name.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// Whether drivers that name interrupts so let the kernel spread them: then nobody can move them. For kernels that do
/// not tell it themselves.
pub(super) fn is_managed(name: &str) -> bool {
    let managed = |part: &str| {
        nvme_queue(part).is_some_and(|queue| queue > 0)
            || part.starts_with("virtio") && (part.contains("-req.") || part.ends_with("-request"))
    };
    parts(name).count() > 0 && parts(name).all(managed)
}

/// The device that a name begins with: `nvme0` of `nvme0q3`, `virtio1` of `virtio1-req.0`, `eth0` of `eth0-TxRx-3`.
pub(super) fn owner(name: &str) -> &str {
    let end = name.find(['-', '@', ' ', ',']).unwrap_or(name.len());
    let owner = &name[..end];
    match nvme_queue(owner) {
        Some(_) => owner.rsplit_once('q').map_or(owner, |(controller, _)| controller),
        None => owner,
    }
}

/// 3 of `nvme0q3`.
fn nvme_queue(name: &str) -> Option<u32> {
    let (controller, queue) = name.strip_prefix("nvme")?.split_once('q')?;
    controller.parse::<u32>().ok()?;
    queue.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_names_of_drivers_are_parsed() {
        use Role::{Block, Both, Receive, Transmit};
        let table = [
            ("nvme0q0", None),
            ("nvme0q1", Some(Block(0))),
            ("nvme11q128", Some(Block(127))),
            ("virtio1-req.0", Some(Block(0))),
            ("virtio1-req.12", Some(Block(12))),
            ("virtio1-config", None),
            ("virtio2-input.3", Some(Receive(3))),
            ("virtio2-output.3", Some(Transmit(3))),
            ("virtio2-control", None),
            ("mlx5_comp3@pci:0000:3b:00.0", Some(Both(3))),
            ("mlx5_async0@pci:0000:3b:00.0", None),
            ("mlx4-5@0000:3b:00.0", Some(Both(5))),
            ("mlx4-async@pci:0000:3b:00.0", None),
            ("eth0-TxRx-3", Some(Both(3))),
            ("enp3s0f0-TxRx-63", Some(Both(63))),
            ("i40e-eth0-TxRx-7", Some(Both(7))),
            ("i40e-0000:3b:00.0:misc", None),
            ("ice-ens1f0-TxRx-2", Some(Both(2))),
            ("eth0-Tx-Rx-5", Some(Both(5))),
            ("ena-mgmnt@pci:0000:00:05.0", None),
            ("eth0-rxtx-1", Some(Both(1))),
            ("eth0-fp-4", Some(Both(4))),
            ("eth0-rx-2", Some(Receive(2))),
            ("eth0-tx-2", Some(Transmit(2))),
            ("eth0-rx0", Some(Receive(0))),
            ("eth0", None),
            ("ttyS0", None),
            ("ahci[0000:00:1f.2]", None),
            ("nvme0", None),
            ("nvmeq1", None),
            ("virtio3-input", None),
            ("", None),
        ];
        for (name, expected) in table {
            assert_eq!(role(name), expected, "{name}");
        }
    }

    #[test]
    fn managed_interrupts_are_recognized_by_name() {
        for name in ["nvme0q1", "nvme0q31", "virtio1-req.0", "virtio4-request"] {
            assert!(is_managed(name), "{name}");
        }
        for name in [
            "nvme0q0",
            "nvme0q0, nvme0q1",
            "virtio1-config",
            "virtio2-input.0",
            "eth0-TxRx-1",
            "eth0-req.1",
            "",
        ] {
            assert!(!is_managed(name), "{name}");
        }
    }

    #[test]
    fn owners() {
        let table = [
            ("nvme0q3", "nvme0"),
            ("nvme0q0, nvme0q1", "nvme0"),
            ("virtio1-req.0", "virtio1"),
            ("eth0-TxRx-3", "eth0"),
            ("ens1f0np0", "ens1f0np0"),
            ("mlx5_comp3@pci:0000:3b:00.0", "mlx5_comp3"),
        ];
        for (name, expected) in table {
            assert_eq!(owner(name), expected, "{name}");
        }
    }
}
