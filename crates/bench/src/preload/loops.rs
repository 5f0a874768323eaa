//! Bare loops, each in a process of its own: of reads, of writes, of copies in memory beside them, and of calls on files of no pool; and programs that do
//! nothing, one after the other.

use super::told;
use crate::error::Error;
use crate::interleave::Samples;
use crate::report::Row;
use crate::run::Run;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Copies in memory, without a file.
pub(super) const MEMCPY: &str = "memcpy";
/// Without the library.
pub(super) const PLAIN: &str = "plain";
pub(super) const OTHER: &str = "preload/other";
pub(super) const START: &str = "preload/start";
const BLOCK_BYTES: usize = 4096;

/// Work of a loop on each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Work {
    Read,
    Write,
    /// Copies it out of memory that is as large as the file.
    Load,
    /// Copies it into such memory.
    Store,
}

impl Work {
    pub(super) fn of(writes: bool) -> Self {
        if writes { Self::Write } else { Self::Read }
    }
}

/// A block in memory. Its lock takes a few percent of a copy's time, with one thread and with two.
type Block = Mutex<Box<[u8]>>;

/// Arguments of the loop.
#[derive(Debug, clap::Args)]
pub(crate) struct LoopArguments {
    file: PathBuf,
    #[arg(long)]
    block_bytes: usize,
    #[arg(long)]
    milliseconds: u64,
    #[arg(long)]
    work: Work,
    #[arg(long)]
    threads: u64,
}

/// The command that runs a loop.
pub(super) fn command(file: &Path, block_bytes: usize, work: Work, threads: u64, time: Duration) -> Command {
    let mut command = Command::new("/proc/self/exe");
    let work = clap::ValueEnum::to_possible_value(&work).expect("no value is hidden");
    command.arg("preload-loop").arg(file).args([
        format!("--block-bytes={block_bytes}"),
        format!("--milliseconds={}", time.as_millis()),
        format!("--work={}", work.get_name()),
        format!("--threads={threads}"),
    ]);
    command
}

/// Takes blocks at random, and prints the ns of one: of all threads together.
pub(crate) fn run_loop(arguments: &LoopArguments) -> Result<(), Error> {
    let system = |error| Error::system(format!("the loop on {}", arguments.file.display()), error);
    let file = File::options()
        .read(true)
        .write(true)
        .open(&arguments.file)
        .map_err(system)?;
    let blocks = match arguments.work {
        Work::Load | Work::Store => file.metadata().map_err(system)?.len() / arguments.block_bytes as u64,
        Work::Read | Work::Write => 0,
    };
    // As large as the file, and all threads use all of it, as they do with the file. Nearly never do two want a block at once.
    let memory: Vec<Block> = (0..blocks)
        .map(|_| Block::new(vec![7; arguments.block_bytes].into()))
        .collect();
    let rate: io::Result<f64> = std::thread::scope(|scope| {
        let begin = |thread| {
            let (file, memory) = (&file, &memory[..]);
            scope.spawn(move || rate(file, memory, arguments, thread))
        };
        let threads: Vec<_> = (0..arguments.threads).map(begin).collect();
        let rates = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        rates.sum()
    });
    println!("{}", 1e9 / rate.map_err(system)?);
    Ok(())
}

/// Runs one thread's part; returns its blocks a second.
fn rate(file: &File, memory: &[Block], arguments: &LoopArguments, thread: u64) -> io::Result<f64> {
    let LoopArguments { block_bytes, work, .. } = *arguments;
    let file_bytes = file.metadata()?.len();
    let mut buffer = vec![9; block_bytes];
    let blocks = file_bytes / block_bytes as u64;
    let (mut random, mut count) = (88_172_645_463_325_252_u64 ^ (thread << 32), 0_u32);
    let (time, start) = (Duration::from_millis(arguments.milliseconds), Instant::now());
    while start.elapsed() < time {
        for _ in 0..256 {
            // Marsaglia's xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let block = random % blocks.max(1);
            let at = block * block_bytes as u64;
            #[expect(clippy::cast_possible_truncation, reason = "so many blocks are in memory")]
            let in_memory = || memory[block as usize].lock().expect("the thread does not panic");
            match work {
                Work::Read => file.read_exact_at(&mut buffer, at)?,
                Work::Write => file.write_all_at(&buffer, at)?,
                Work::Load => buffer.copy_from_slice(&in_memory()),
                Work::Store => in_memory().copy_from_slice(&buffer),
            }
            // Copies that nobody looks at are not left out.
            std::hint::black_box(&mut buffer);
        }
        count += 256;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// A case of loops alone.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alone {
    /// Gain by a second thread in the same file, beside memcpy's gain.
    Threads { writes: bool },
    /// A call on a file of no pool, with the library and without it.
    Other,
    /// A program that does nothing, by `homenode run` and without it.
    Start,
}

/// Programs that are started for a sample.
const STARTS: u32 = 20;

impl Alone {
    pub(super) fn all() -> Vec<Self> {
        vec![
            Self::Threads { writes: true },
            Self::Threads { writes: false },
            Self::Other,
            Self::Start,
        ]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Threads { writes: true } => "preload/threads/4k/write",
            Self::Threads { writes: false } => "preload/threads/4k/read",
            Self::Other => OTHER,
            Self::Start => START,
        }
    }

    /// Measures it on a file of the pool.
    pub(super) fn row(self, run: &Run<'_>, file: &Path, library: &Path, time: Duration) -> Result<Row, Error> {
        let sample = |command: Command, library: Option<&Path>| -> Result<f64, Error> {
            let mut command = command;
            let text = told(&mut command, library, || self.name().to_owned())?;
            let number = text.trim().parse();
            number.map_err(|_| Error::system(self.name(), io::Error::other(format!("it tells nothing: {text}"))))
        };
        let samples: Vec<Samples> = match self {
            Self::Threads { writes } => {
                let copies = if writes { Work::Store } else { Work::Load };
                let turns = [(Work::of(writes), 1), (Work::of(writes), 2), (copies, 1), (copies, 2)];
                run.take_turns(self.name(), turns.len(), |_, turn| {
                    let (work, threads) = turns[turn];
                    sample(command(file, BLOCK_BYTES, work, threads, time), Some(library))
                })?
            }
            Self::Other => {
                let others = Others::build()?;
                run.take_turns(self.name(), 2, |_, turn| {
                    let list = match turn {
                        0 => format!("{}:{}", library.display(), others.next.display()),
                        _ => others.next.display().to_string(),
                    };
                    sample(Command::new(&others.program), Some(Path::new(&list)))
                })?
            }
            Self::Start => run.take_turns(self.name(), 2, |_, turn| {
                let start = Instant::now();
                for _ in 0..STARTS {
                    let mut command = match turn {
                        0 => Command::new(library.with_file_name("homenode")),
                        _ => Command::new("/bin/true"),
                    };
                    if turn == 0 {
                        command.args(["run", "--", "/bin/true"]);
                    }
                    let what = command.get_program().display().to_string();
                    told(&mut command, None, || format!("running {what}"))?;
                }
                Ok(start.elapsed().as_nanos() as f64 / f64::from(STARTS))
            })?,
        };
        let name = self.name().to_owned();
        Ok(match &samples[..] {
            [own_1, own_2, memcpy_1, memcpy_2] => Row::new(
                name,
                "of one thread's time",
                &own_2.over(own_1),
                &[(MEMCPY, &memcpy_2.over(memcpy_1))],
            ),
            [own, plain] => {
                let unit = if name == START { "ns/start" } else { "ns/op" };
                Row::new(name, unit, own, &[(PLAIN, plain)])
            }
            _ => unreachable!("the loop ends by its own count"),
        })
    }
}

/// `others.c`, built.
struct Others {
    program: PathBuf,
    next: PathBuf,
    _directory: tempfile::TempDir,
}

impl Others {
    fn build() -> Result<Self, Error> {
        let system = |error| Error::system("building the loop of calls on other files by cc", error);
        let directory = tempfile::tempdir().map_err(system)?;
        let path = |name: &str| directory.path().join(name);
        let (source, program, next) = (path("others.c"), path("others"), path("next.so"));
        std::fs::write(&source, include_str!("others.c")).map_err(system)?;
        for (to, options) in [(&program, &[][..]), (&next, &["-DNEXT", "-shared", "-fPIC"][..])] {
            let built = Command::new("cc")
                .arg("-O2")
                .args(options)
                .arg("-o")
                .args([to, &source])
                .status();
            let status = built.map_err(system)?;
            if !status.success() {
                return Err(system(io::Error::other(status.to_string())));
            }
        }
        Ok(Self {
            program,
            next,
            _directory: directory,
        })
    }
}
