//! Work of each pass of the durable bench, and the time of an operation of it.

use crate::error::Error;
use crate::pass::together;
use crate::place::Place;
use crate::shuffle::permutation;
use std::time::Instant;

const BLOCK: usize = 4096;
const MEBIBYTE: usize = 1 << 20;
/// Bytes of the file that is overwritten, and of the one that is dirty beside a sync.
const LARGE_BYTES: usize = 64 << 20;
/// Threads that sync at a time.
const THREADS: usize = 8;

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// 4 KiB at the end of a file, and fsync.
    Append,
    /// `Append` while another file has 64 MiB that nobody synced.
    AppendBeside,
    /// 1 MiB at the end of a file, and fsync.
    Mebibyte,
    /// A new file of 4 KiB, fsync, and its rename over another: how programs replace a file.
    Replace,
    /// `Append` by eight threads at once, a file each; time for each operation of all.
    Group,
    /// 4 KiB somewhere in a file of 64 MiB, and no fsync.
    Overwrite,
}

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Append => "append-4k",
            Self::AppendBeside => "append-4k-beside-64m",
            Self::Mebibyte => "append-1m",
            Self::Replace => "replace-4k",
            Self::Group => "append-4k-8t",
            Self::Overwrite => "overwrite-4k",
        }
    }

    /// Time of an operation in ns, of `count`.
    pub(crate) fn pass(self, place: &Place, count: usize, seed: u64) -> Result<f64, Error> {
        match self {
            Self::Append => append(place, BLOCK, count),
            Self::Mebibyte => append(place, MEBIBYTE, count),
            Self::AppendBeside => {
                let other = place.create("other")?;
                other.fill(7, LARGE_BYTES)?;
                let elapsed = append(place, BLOCK, count)?;
                other.sync()?;
                Ok(elapsed)
            }
            Self::Replace => replace(place, count),
            Self::Group => group(place, count),
            Self::Overwrite => overwrite(place, count, seed),
        }
    }
}

fn per_operation(start: Instant, count: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

fn append(place: &Place, bytes: usize, count: usize) -> Result<f64, Error> {
    let file = place.create("log")?;
    file.sync()?;
    let bytes = vec![5; bytes];
    let start = Instant::now();
    for nth in 0..count {
        file.write(&bytes, (nth * bytes.len()) as u64)?;
        file.sync()?;
    }
    Ok(per_operation(start, count))
}

fn replace(place: &Place, count: usize) -> Result<f64, Error> {
    let bytes = [3; BLOCK];
    let start = Instant::now();
    for _ in 0..count {
        let file = place.create("new")?;
        file.write(&bytes, 0)?;
        file.sync()?;
        place.rename("new", "file")?;
    }
    Ok(per_operation(start, count))
}

fn group(place: &Place, count: usize) -> Result<f64, Error> {
    let each = count / THREADS;
    let done = together(
        (0..THREADS).collect(),
        || (),
        |thread| {
            let file = place.create(&format!("log{thread}"))?;
            Ok(move || {
                (0..each).try_for_each(|nth| {
                    file.write(&[5; BLOCK], (nth * BLOCK) as u64)?;
                    file.sync()
                })
            })
        },
    )?;
    Ok(done.elapsed.as_secs_f64() * 1e9 / (each * THREADS) as f64)
}

fn overwrite(place: &Place, count: usize, seed: u64) -> Result<f64, Error> {
    let file = place.create("large")?;
    file.fill(7, LARGE_BYTES)?;
    let order = permutation(LARGE_BYTES / BLOCK, seed);
    let bytes = [9; BLOCK];
    let start = Instant::now();
    for block in order.iter().cycle().take(count) {
        file.write(&bytes, u64::from(*block) * BLOCK as u64)?;
    }
    Ok(per_operation(start, count))
}
