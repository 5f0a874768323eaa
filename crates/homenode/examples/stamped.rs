//! A durable pool under stamped load, and an oracle of what a crash must leave of it.
//!
//! `stamped write PATH...` works on the pool of these members until it is killed, and tells on standard output what was made durable. `stamped check
//! PATH...` reads what it had told, from standard input, and fails unless all of that is there, no byte is foreign, and the pool is sound.
//!
//! Each word of each file tells whose it is: thread, file, place and version.

use homenode::{File, OpenOptions, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const THREADS: u64 = 3;
const WORD_BYTES: usize = 8;
/// Words of a record that is appended: records cross blocks.
const RECORD_WORDS: usize = 25;
/// Slots of the table that is overwritten in place, and words of each.
const SLOTS: u64 = 97;
const SLOT_WORDS: usize = 24;
/// A thread makes such a file in every so many steps, and removes the one of so many steps before.
const MAKE_EVERY: u64 = 6;
const MADE_KEPT: u64 = 30;

/// Owner of a word.
#[derive(Clone, Copy)]
enum Kind {
    Log = 1,
    Table,
    Current,
    Made,
}

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let job = words.next().unwrap_or_default();
    let members: Vec<PathBuf> = words.map(PathBuf::from).collect();
    match job.to_str() {
        Some("write") => write(&members),
        Some("check") => check(&members),
        _ => Err("stamped write|check PATH...".into()),
    }
}

fn word(thread: u64, kind: Kind, place: u64, version: u64) -> u64 {
    (thread + 1) << 60 | (kind as u64) << 56 | place << 32 | version
}

fn repeated(word: u64, count: usize) -> Vec<u8> {
    word.to_le_bytes().repeat(count)
}

/// Words of a file that is put in another's place, and of one that is made: some fit into the log, some do not.
fn length_of(step: u64) -> usize {
    [37, 512, 700, 5000][usize::try_from(step / 2 % 4).expect("below 4")]
}

fn slot_of(step: u64) -> u64 {
    step * 7 % SLOTS
}

/// State that a thread has told to be durable.
fn tell(thread: u64, what: &str, step: u64) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{thread} {what} {step}")?)
}

fn write(members: &[PathBuf]) -> Result<()> {
    let pool = Pool::open_on(members, &PoolOptions::new())?;
    println!("up");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let pool = &pool;
                    move || work(pool, thread)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })
}

/// The steps of a thread, for ever.
fn work(pool: &Pool, thread: u64) -> Result<()> {
    let directory = format!("thread-{thread}");
    if pool.metadata(&directory).is_err() {
        pool.create_dir(&directory)?;
    }
    let both = OpenOptions::new().read(true).write(true).create(true);
    let name = |file: &str| format!("{directory}/{file}");
    let (log, table) = (pool.open(name("log"), &both)?, pool.open(name("table"), &both)?);
    let record_bytes = (RECORD_WORDS * WORD_BYTES) as u64;
    let first = log.metadata().len() / record_bytes;
    for step in first.. {
        log.write_all_at(
            &repeated(word(thread, Kind::Log, 0, step), RECORD_WORDS),
            step * record_bytes,
        )?;
        let slot = slot_of(step);
        let slot_at = slot * (SLOT_WORDS * WORD_BYTES) as u64;
        table.write_all_at(&repeated(word(thread, Kind::Table, slot, step), SLOT_WORDS), slot_at)?;
        if step.is_multiple_of(thread * 2 + 3) {
            log.sync()?;
            tell(thread, "log", step)?;
        }
        if step.is_multiple_of(5) {
            table.sync()?;
            tell(thread, "table", step)?;
        }
        if step.is_multiple_of(4) {
            let new = pool.open(name("new"), &both.truncate(true))?;
            new.write_all_at(&repeated(word(thread, Kind::Current, 0, step), length_of(step)), 0)?;
            if step.is_multiple_of(8) {
                new.sync()?;
            }
            pool.rename(name("new"), name("current"))?;
            if step.is_multiple_of(12) {
                new.sync()?;
                tell(thread, "current", step)?;
            }
        }
        if step.is_multiple_of(MAKE_EVERY) {
            let made = pool.open(name(&format!("made-{step}")), &both)?;
            made.write_all_at(&repeated(word(thread, Kind::Made, 0, step), length_of(step)), 0)?;
            made.sync()?;
            tell(thread, "made", step)?;
            if step >= MADE_KEPT {
                // Not there where a crash came before it was made.
                let _ = pool.remove_file(name(&format!("made-{}", step - MADE_KEPT)));
            }
        }
    }
    Ok(())
}

/// Lines told of each thread's kinds of files, the last of each.
fn told() -> Result<BTreeMap<(u64, String), u64>> {
    let mut told = BTreeMap::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let (Some(thread), Some(what), Some(step), None) = (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let last: &mut u64 = told.entry((thread.parse()?, what.to_owned())).or_default();
        *last = step.parse::<u64>()?.max(*last);
    }
    Ok(told)
}

fn check(members: &[PathBuf]) -> Result<()> {
    let told = told()?;
    let checked = homenode::check(members)?;
    if let Some(fault) = checked.faults.first() {
        return Err(format!("the pool is damaged: {fault:?}, and {} more", checked.faults.len() - 1).into());
    }
    let pool = Pool::open_on(members, &PoolOptions::new())?;
    for thread in 0..THREADS {
        let told = |what: &str| told.get(&(thread, what.to_owned())).copied();
        Found { pool: &pool, thread }
            .check(&told)
            .map_err(|error| format!("thread {thread}: {error}"))?;
    }
    let last: u64 = told.values().sum();
    println!(
        "sound: {} inodes, {} kinds of files told, {last} steps in all",
        checked.inodes,
        told.len()
    );
    Ok(())
}

/// State of a thread's files as it is found.
struct Found<'a> {
    pool: &'a Pool,
    thread: u64,
}

impl Found<'_> {
    fn check(&self, told: &dyn Fn(&str) -> Option<u64>) -> Result<()> {
        self.check_log(told("log"))?;
        self.check_table(told("table"))?;
        self.check_current(told("current"))?;
        self.check_made(told("made"))
    }

    /// The words of a file; `None` where there is no such file.
    fn words(&self, name: &str) -> Result<Option<Vec<u64>>> {
        let path = format!("thread-{}/{name}", self.thread);
        if self.pool.metadata(&path).is_err() {
            return Ok(None);
        }
        let file: File = self.pool.open(&path, &OpenOptions::new().read(true))?;
        let mut bytes = vec![0; usize::try_from(file.metadata().len())?];
        file.read_exact_at(&mut bytes, 0)?;
        let words = bytes.chunks_exact(WORD_BYTES);
        Ok(Some(
            words
                .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
                .collect(),
        ))
    }

    fn check_log(&self, told: Option<u64>) -> Result<()> {
        let words = self.words("log")?.unwrap_or_default();
        if let Some(told) = told
            && words.len() < (usize::try_from(told)? + 1) * RECORD_WORDS
        {
            return Err(format!("log: record {told} was told, and {} words are there", words.len()).into());
        }
        for (at, found) in words.iter().enumerate() {
            if *found != word(self.thread, Kind::Log, 0, (at / RECORD_WORDS) as u64) {
                return Err(format!("log: word {at} of {} is {found:#x}", words.len()).into());
            }
        }
        Ok(())
    }

    fn check_table(&self, told: Option<u64>) -> Result<()> {
        let words = self.words("table")?.unwrap_or_default();
        for slot in 0..SLOTS {
            // The last step up to the told one that wrote the slot.
            let least = told.and_then(|told| {
                (told.saturating_sub(SLOTS - 1)..=told)
                    .rev()
                    .find(|step| slot_of(*step) == slot)
            });
            let start = usize::try_from(slot)? * SLOT_WORDS;
            let found = words.get(start..start + SLOT_WORDS).unwrap_or_default();
            if found.is_empty() && least.is_some() {
                return Err(format!("table: slot {slot} is gone").into());
            }
            for found in found {
                let step = found & 0xffff_ffff;
                let is_own = *found == word(self.thread, Kind::Table, slot, step) && slot_of(step) == slot;
                // A hole: the table grew past it.
                let is_hole = *found == 0;
                if !(is_own && least.is_none_or(|least| step >= least) || is_hole && least.is_none()) {
                    return Err(format!("table: slot {slot} holds {found:#x}, and step {least:?} was told").into());
                }
            }
        }
        Ok(())
    }

    fn check_current(&self, told: Option<u64>) -> Result<()> {
        let Some(words) = self.words("current")? else {
            return told.map_or(Ok(()), |told| Err(format!("current of step {told} is gone").into()));
        };
        let step = words.first().map_or(0, |word| word & 0xffff_ffff);
        if told.is_some_and(|told| step < told) {
            return Err(format!("current is that of step {step}, and {told:?} was told").into());
        }
        self.check_whole("current", Kind::Current, &words, step)
    }

    /// Files that were made: the newest one that is there is not older than what was told, and none is missing that only a later step removes.
    fn check_made(&self, told: Option<u64>) -> Result<()> {
        let Some(told) = told else { return Ok(()) };
        let names = self.pool.read_dir(format!("thread-{}", self.thread))?;
        let names = names.map(|entry| Ok(entry?.name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        let steps = names.iter().filter_map(|name| name.strip_prefix("made-")?.parse().ok());
        let newest = steps.max().unwrap_or(0);
        if newest < told {
            return Err(format!("the newest file that was made is that of step {newest}, and {told} was told").into());
        }
        let kept = newest.saturating_sub(MADE_KEPT - MAKE_EVERY)..=newest;
        for step in kept.filter(|step| step.is_multiple_of(MAKE_EVERY)) {
            let name = format!("made-{step}");
            let words = self.words(&name)?.ok_or_else(|| format!("{name} is gone"))?;
            // The newest one may just have been made.
            if step < newest || step == told {
                self.check_whole(&name, Kind::Made, &words, step)?;
            }
        }
        Ok(())
    }

    fn check_whole(&self, name: &str, kind: Kind, words: &[u64], step: u64) -> Result<()> {
        let whole = word(self.thread, kind, 0, step);
        if words.len() != length_of(step) || words.iter().any(|word| *word != whole) {
            return Err(format!("{name}: {} words, the first {:x?}", words.len(), words.first()).into());
        }
        Ok(())
    }
}
