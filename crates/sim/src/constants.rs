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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs<T> {
    /// Each read or write.
    pub operation_ns: T,
    /// Each page of 4 KiB that it touches.
    pub page_ns: T,
    /// Each page of 4 KiB that is written first, and has no memory yet.
    pub first_ns: T,
}

/// All constants: bands, or what was drawn of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constants<T = Band> {
    /// Time of a line from memory of the own node.
    pub local_ns: T,
    /// Time that each link on the way adds. Not used where a machine tells its latencies in nanoseconds.
    pub hop_ns: T,
    /// Lines that a core has under way at once when it copies.
    pub lines_under_way: T,
    /// Percent by which the first [`PAGE_LINES`](crate::machine::PAGE_LINES) lines of a copy take longer than later ones, as nothing is read ahead yet.
    pub first_percent: T,
    /// Percent by which the first [`RAMP_LINES`](crate::machine::RAMP_LINES) take longer.
    pub ramp_percent: T,
    /// Measured times of a core that copies alone, from memory of its own node: instead of the three above, of the lines that a write
    /// takes more, and of caches.
    pub copies: Copies,
    /// Beside `copies`, and not without: the same while each core of the node copies. For loads whose cores at work are known, which are
    /// the reads and overwrites of [`fio`](crate::fio).
    pub crowded_copies: Copies,
    /// Bytes a nanosecond of a node's memory.
    pub memory_bytes_per_ns: T,
    /// Bytes a nanosecond of a link, each way.
    pub link_bytes_per_ns: T,
    /// Lines that cross memory for each line written: 2 where the old line is read first.
    pub lines_per_written: T,
    /// Time in which a modified cache line goes to another core of the node.
    pub transfer_ns: T,
    /// Time that each link on the way adds to that.
    pub transfer_hop_ns: T,
    /// A stock tmpfs, in pages of 4 KiB.
    pub tmpfs: Costs<T>,
    /// Homenode's mount, whose files the kernel holds; and a tmpfs in huge pages.
    pub mount: Costs<T>,
    /// Homenode's library, and the paper's filesystem in the kernel without its system call.
    pub library: Costs<T>,
    /// The page cache of a disk's filesystem, on a hit.
    pub page_cache: Costs<T>,
    /// A FUSE server that keeps files in its own memory: two wake-ups for each operation, and a second copy of each page.
    pub fuse: Costs<T>,
}

/// Constants of one run.
pub type Drawn = Constants<f64>;

impl Costs<Band> {
    const fn new(operation_ns: Band, page_ns: Band, first_ns: Band) -> Self {
        Self {
            operation_ns,
            page_ns,
            first_ns,
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

impl<T> Constants<T> {
    /// Each constant and its name, in the order of draws; times of copies are not drawn.
    fn fields(&mut self) -> Vec<(String, &mut T)> {
        let mut fields = vec![
            ("local_ns".to_owned(), &mut self.local_ns),
            ("hop_ns".to_owned(), &mut self.hop_ns),
            ("lines_under_way".to_owned(), &mut self.lines_under_way),
            ("first_percent".to_owned(), &mut self.first_percent),
            ("ramp_percent".to_owned(), &mut self.ramp_percent),
            ("memory_bytes_per_ns".to_owned(), &mut self.memory_bytes_per_ns),
            ("link_bytes_per_ns".to_owned(), &mut self.link_bytes_per_ns),
            ("lines_per_written".to_owned(), &mut self.lines_per_written),
            ("transfer_ns".to_owned(), &mut self.transfer_ns),
            ("transfer_hop_ns".to_owned(), &mut self.transfer_hop_ns),
        ];
        for (name, costs) in [
            ("tmpfs", &mut self.tmpfs),
            ("mount", &mut self.mount),
            ("library", &mut self.library),
            ("page_cache", &mut self.page_cache),
            ("fuse", &mut self.fuse),
        ] {
            fields.push((format!("{name}.operation_ns"), &mut costs.operation_ns));
            fields.push((format!("{name}.page_ns"), &mut costs.page_ns));
            fields.push((format!("{name}.first_ns"), &mut costs.first_ns));
        }
        fields
    }
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
        let copies = match name.split_once('.') {
            Some(("copies", bytes)) => Some((&mut self.copies, bytes)),
            Some(("crowded_copies", bytes)) => Some((&mut self.crowded_copies, bytes)),
            _ => None,
        };
        if let Some((copies, bytes)) = copies {
            let bytes = bytes.parse().ok().filter(|bytes| *bytes > 0);
            return bytes.map(|bytes| copies.insert(bytes, value)).is_some();
        }
        let found = self.fields().into_iter().find(|(of_field, _)| of_field == name);
        found.map(|(_, band)| *band = Band::known(value)).is_some()
    }

    /// Constants of one run; the same seed draws the same.
    #[must_use]
    pub fn draw(&self, seed: u64) -> Drawn {
        let random = &mut random(Stream::Constants, seed);
        let mut drawn = Drawn {
            copies: self.copies.clone(),
            crowded_copies: self.crowded_copies.clone(),
            ..Drawn::default()
        };
        for ((_, value), (_, band)) in drawn.fields().into_iter().zip(self.clone().fields()) {
            *value = band.draw(random);
        }
        drawn
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
