//! Constants of the model: what a machine and the software on it take.

use crate::{PS_PER_NS, Random, Stream, random};
use rand::Rng;
use std::collections::BTreeMap;

/// Nanoseconds of a copy by its bytes.
pub type Copies = BTreeMap<u64, f64>;

/// A number that is known to lie between two others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Least.
    pub low: f64,
    /// Most.
    pub high: f64,
}

impl Band {
    /// Anything from `low` to `high`.
    #[must_use]
    pub const fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// A number that is known.
    #[must_use]
    pub const fn known(value: f64) -> Self {
        Self::new(value, value)
    }

    pub(crate) fn draw(self, random: &mut Random) -> f64 {
        self.low + (self.high - self.low) * random.random::<f64>()
    }
}

/// Costs of file operations by one contestant, in nanoseconds beside the copy of the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs<T> {
    /// Each read or write.
    pub operation_ns: T,
    /// Each page of 4 KiB that it touches.
    pub page_ns: T,
    /// Each page of 4 KiB that is written first, and has no memory yet.
    pub first_ns: T,
}

/// Bands of all constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    /// Time of a line from memory of the own node.
    pub local_ns: Band,
    /// Time that each link on the way adds. Not used where a machine tells its latencies in nanoseconds.
    pub hop_ns: Band,
    /// Lines that a core has under way at once when it copies.
    pub lines_under_way: Band,
    /// Percent by which the first [`PAGE_LINES`](crate::machine::PAGE_LINES) lines of a copy take longer than later ones, as nothing is read ahead yet.
    pub first_percent: Band,
    /// Percent by which the first [`RAMP_LINES`](crate::machine::RAMP_LINES) take longer.
    pub ramp_percent: Band,
    /// Measured times of a core that copies alone, from memory of its own node: instead of the three above, of the lines that a write
    /// takes more, and of caches.
    pub copies: Copies,
    /// Beside `copies`, and not without: the same while each core of the node copies. For loads whose cores at work are known, which are
    /// the reads and overwrites of [`fio`](crate::fio).
    pub crowded_copies: Copies,
    /// Bytes a nanosecond of a node's memory.
    pub memory_bytes_per_ns: Band,
    /// Bytes a nanosecond of a link, each way.
    pub link_bytes_per_ns: Band,
    /// Lines that cross memory for each line written: 2 where the old line is read first.
    pub lines_per_written: Band,
    /// Time in which a modified cache line goes to another core of the node.
    pub transfer_ns: Band,
    /// Time that each link on the way adds to that.
    pub transfer_hop_ns: Band,
    /// A stock tmpfs, in pages of 4 KiB.
    pub tmpfs: Costs<Band>,
    /// Homenode's mount, whose files the kernel holds; and a tmpfs in huge pages.
    pub mount: Costs<Band>,
    /// Homenode's library, and the paper's filesystem in the kernel without its system call.
    pub library: Costs<Band>,
    /// The page cache of a disk's filesystem, on a hit.
    pub page_cache: Costs<Band>,
    /// A FUSE server that keeps files in its own memory: two wake-ups for each operation, and a second copy of each page.
    pub fuse: Costs<Band>,
}

/// Constants of one run.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of Constants")]
pub struct Drawn {
    pub local_ns: f64,
    pub hop_ns: f64,
    pub lines_under_way: f64,
    pub first_percent: f64,
    pub ramp_percent: f64,
    pub copies: Copies,
    pub crowded_copies: Copies,
    pub memory_bytes_per_ns: f64,
    pub link_bytes_per_ns: f64,
    pub lines_per_written: f64,
    pub transfer_ns: f64,
    pub transfer_hop_ns: f64,
    pub tmpfs: Costs<f64>,
    pub mount: Costs<f64>,
    pub library: Costs<f64>,
    pub page_cache: Costs<f64>,
    pub fuse: Costs<f64>,
}

impl Costs<Band> {
    const fn new(operation_ns: Band, page_ns: Band, first_ns: Band) -> Self {
        Self {
            operation_ns,
            page_ns,
            first_ns,
        }
    }

    fn draw(self, random: &mut Random) -> Costs<f64> {
        Costs {
            operation_ns: self.operation_ns.draw(random),
            page_ns: self.page_ns.draw(random),
            first_ns: self.first_ns.draw(random),
        }
    }
}

impl Costs<f64> {
    /// Time of an operation on so many pages, `first` of which have no memory yet, in picoseconds; without the copy.
    #[must_use]
    pub fn of(&self, pages: u64, first: u64) -> u64 {
        let pages = self.page_ns * pages as f64 + self.first_ns * first as f64;
        // At least a picosecond, so that time goes on whatever constants are given.
        ps(self.operation_ns + pages).max(1)
    }
}

/// Picoseconds of so many nanoseconds.
#[must_use]
pub(crate) fn ps(ns: f64) -> u64 {
    // Times of a run are far below 2^53 ps, and never negative.
    #[expect(clippy::cast_possible_truncation, reason = "see above")]
    let ps = (ns * PS_PER_NS as f64).round() as u64;
    ps
}

impl Constants {
    /// A server of several sockets. Bands are of servers from 2010 to 2020: the papers name cores and nodes, and no more. The
    /// software's are about those that `homenode-bench` and fio measured on this project's machines, and up to twice as much for older
    /// processors.
    pub const SERVER: Self = Self {
        local_ns: Band::new(80.0, 130.0),
        hop_ns: Band::new(50.0, 120.0),
        lines_under_way: Band::new(8.0, 14.0),
        first_percent: Band::new(0.0, 100.0),
        ramp_percent: Band::new(0.0, 20.0),
        copies: Copies::new(),
        crowded_copies: Copies::new(),
        memory_bytes_per_ns: Band::new(15.0, 40.0),
        link_bytes_per_ns: Band::new(6.0, 14.0),
        lines_per_written: Band::new(1.0, 2.0),
        transfer_ns: Band::new(30.0, 60.0),
        transfer_hop_ns: Band::new(60.0, 150.0),
        tmpfs: Costs::new(
            Band::new(300.0, 600.0),
            Band::new(150.0, 400.0),
            Band::new(400.0, 1200.0),
        ),
        mount: Costs::new(Band::new(350.0, 700.0), Band::new(20.0, 60.0), Band::new(20.0, 60.0)),
        library: Costs::new(Band::new(60.0, 120.0), Band::new(5.0, 20.0), Band::new(40.0, 120.0)),
        page_cache: Costs::new(Band::new(400.0, 700.0), Band::new(150.0, 400.0), Band::new(0.0, 0.0)),
        fuse: Costs::new(
            Band::new(12_000.0, 40_000.0),
            Band::new(250.0, 800.0),
            Band::new(400.0, 1200.0),
        ),
    };

    /// Names of all constants, as [`Constants::set`] takes them.
    pub const NAMES: [&str; 17] = [
        "local_ns",
        "hop_ns",
        "lines_under_way",
        "first_percent",
        "ramp_percent",
        "copies.BYTES",
        "crowded_copies.BYTES",
        "memory_bytes_per_ns",
        "link_bytes_per_ns",
        "lines_per_written",
        "transfer_ns",
        "transfer_hop_ns",
        "tmpfs.(operation|page|first)_ns",
        "mount.(…)",
        "library.(…)",
        "page_cache.(…)",
        "fuse.(…)",
    ];

    /// Gives a constant a known value, by its name here, with a dot within a filesystem's costs and before a copy's bytes: `hop_ns`,
    /// `tmpfs.page_ns`, `copies.4096`. Whether there is a constant of that name.
    #[must_use]
    pub fn set(&mut self, name: &str, value: f64) -> bool {
        let of_costs = |costs: &mut Costs<Band>, name: &str| {
            match name {
                "operation_ns" => costs.operation_ns = Band::known(value),
                "page_ns" => costs.page_ns = Band::known(value),
                "first_ns" => costs.first_ns = Band::known(value),
                _ => return false,
            }
            true
        };
        let of_copies = |copies: &mut Copies, bytes: &str| {
            let bytes = bytes.parse().ok().filter(|bytes| *bytes > 0);
            bytes.map(|bytes| copies.insert(bytes, value)).is_some()
        };
        let of_machine = match name {
            "local_ns" => &mut self.local_ns,
            "hop_ns" => &mut self.hop_ns,
            "lines_under_way" => &mut self.lines_under_way,
            "first_percent" => &mut self.first_percent,
            "ramp_percent" => &mut self.ramp_percent,
            "memory_bytes_per_ns" => &mut self.memory_bytes_per_ns,
            "link_bytes_per_ns" => &mut self.link_bytes_per_ns,
            "lines_per_written" => &mut self.lines_per_written,
            "transfer_ns" => &mut self.transfer_ns,
            "transfer_hop_ns" => &mut self.transfer_hop_ns,
            _ => {
                return match name.split_once('.') {
                    Some(("copies", bytes)) => of_copies(&mut self.copies, bytes),
                    Some(("crowded_copies", bytes)) => of_copies(&mut self.crowded_copies, bytes),
                    Some(("tmpfs", name)) => of_costs(&mut self.tmpfs, name),
                    Some(("mount", name)) => of_costs(&mut self.mount, name),
                    Some(("library", name)) => of_costs(&mut self.library, name),
                    Some(("page_cache", name)) => of_costs(&mut self.page_cache, name),
                    Some(("fuse", name)) => of_costs(&mut self.fuse, name),
                    _ => false,
                };
            }
        };
        *of_machine = Band::known(value);
        true
    }

    /// Constants of one run; the same seed draws the same.
    #[must_use]
    pub fn draw(&self, seed: u64) -> Drawn {
        let random = &mut random(Stream::Constants, seed);
        Drawn {
            local_ns: self.local_ns.draw(random),
            hop_ns: self.hop_ns.draw(random),
            lines_under_way: self.lines_under_way.draw(random),
            first_percent: self.first_percent.draw(random),
            ramp_percent: self.ramp_percent.draw(random),
            copies: self.copies.clone(),
            crowded_copies: self.crowded_copies.clone(),
            memory_bytes_per_ns: self.memory_bytes_per_ns.draw(random),
            link_bytes_per_ns: self.link_bytes_per_ns.draw(random),
            lines_per_written: self.lines_per_written.draw(random),
            transfer_ns: self.transfer_ns.draw(random),
            transfer_hop_ns: self.transfer_hop_ns.draw(random),
            tmpfs: self.tmpfs.draw(random),
            mount: self.mount.draw(random),
            library: self.library.draw(random),
            page_cache: self.page_cache.draw(random),
            fuse: self.fuse.draw(random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_lie_in_their_bands_and_repeat() {
        for seed in 0..100 {
            let drawn = Constants::SERVER.draw(seed);
            assert_eq!(drawn, Constants::SERVER.draw(seed));
            let band = Constants::SERVER.local_ns;
            assert!((band.low..=band.high).contains(&drawn.local_ns), "{}", drawn.local_ns);
        }
        assert_ne!(Constants::SERVER.draw(1), Constants::SERVER.draw(2));
    }

    #[test]
    fn streams_have_nothing_in_common() {
        let first = |stream| random(stream, 7).random::<u64>();
        assert_ne!(first(Stream::Constants), first(Stream::Load));
        assert_ne!(first(Stream::Load), first(Stream::Run));
        assert_ne!(
            random(Stream::Run, 7).random::<u64>(),
            random(Stream::Run, 8).random::<u64>()
        );
    }

    #[test]
    fn known_constants_are_not_drawn() {
        let mut constants = Constants::SERVER;
        assert!(constants.set("hop_ns", 7.5) && constants.set("tmpfs.page_ns", 3.0));
        assert!(constants.set("copies.4096", 300.0) && constants.set("crowded_copies.4096", 400.0));
        for name in [
            "hop",
            "tmpfs",
            "tmpfs.page",
            "ext4.page_ns",
            "copies",
            "copies.0",
            "copies.4k",
            "",
        ] {
            assert!(!constants.set(name, 1.0), "{name}");
        }
        let drawn = constants.draw(3);
        assert_eq!((drawn.hop_ns, drawn.tmpfs.page_ns), (7.5, 3.0));
        assert_eq!((drawn.copies[&4096], drawn.crowded_copies[&4096]), (300.0, 400.0));
        assert_eq!(drawn.local_ns, Constants::SERVER.draw(3).local_ns);
    }

    #[test]
    fn costs_grow_with_pages() {
        let costs = Costs {
            operation_ns: 100.0,
            page_ns: 10.0,
            first_ns: 1000.0,
        };
        assert_eq!(costs.of(0, 0), 100_000);
        assert_eq!(costs.of(3, 2), 2_130_000);
    }
}
