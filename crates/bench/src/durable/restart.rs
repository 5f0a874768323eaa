//! Times that a pool takes to come back: with a million files after it was put away, and with a long log after its process was killed.

use super::disk;
use crate::error::Error;
use crate::interrupt;
use crate::output::tell;
use crate::report::Row;
use crate::run::Run;
use homenode::{Pool, PoolOptions, Size};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const MEMBER_BYTES: u64 = 4 << 30;
const DIRECTORIES: usize = 100;

/// Arguments of `homenode-bench fill-pool`: makes files in a pool and ends as a killed process does.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The pool's member.
    member: PathBuf,
    /// Number of files.
    files: usize,
}

/// Arguments of `homenode-bench open-pool`: opens a pool as a server does that has just begun.
#[derive(Debug, clap::Args)]
pub(crate) struct OpenArguments {
    /// The pool's member.
    member: PathBuf,
}

/// Opens the pool, prints how many seconds that took and the bytes of its log, and puts the pool away.
pub(crate) fn open(arguments: &OpenArguments) -> Result<(), Error> {
    let start = Instant::now();
    let pool =
        Pool::open_on(std::slice::from_ref(&arguments.member), &options()).map_err(Error::library("opening a pool"))?;
    println!("{} {}", start.elapsed().as_secs_f64(), log_bytes(&pool));
    Ok(())
}

/// Makes the files, prints the bytes of the log, and waits to be killed.
pub(crate) fn fill(arguments: &Arguments) -> Result<(), Error> {
    let pool =
        Pool::open_on(std::slice::from_ref(&arguments.member), &options()).map_err(Error::library("opening a pool"))?;
    make_files(&pool, arguments.files)?;
    pool.sync().map_err(Error::library("making a pool durable"))?;
    tell(log_bytes(&pool))?;
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    Ok(())
}

fn options() -> PoolOptions {
    PoolOptions::new().metadata(Size::Bytes(2 << 30))
}

fn make_files(pool: &Pool, files: usize) -> Result<(), Error> {
    let failed = Error::library("making a file");
    for directory in 0..DIRECTORIES {
        pool.create_dir_all(format!("/d{directory}")).map_err(&failed)?;
    }
    for file in 0..files {
        let name = format!("/d{}/f{file:07}", file % DIRECTORIES);
        drop(pool.create_file(name).map_err(&failed)?);
        interrupt::check()?;
    }
    Ok(())
}

/// Bytes of the log in use: a pool without data uses them, as many for the next snapshot, and a little more.
fn log_bytes(pool: &Pool) -> u64 {
    pool.status().used_bytes / 2
}

fn row(case: String, unit: &'static str, values: &[f64]) -> Row {
    Row::new(case, unit, &values.iter().copied().collect(), &[])
}

/// Rows of the wanted cases.
pub(super) fn measure(run: &Run<'_>, directory: &Path, files: usize, logged_files: usize) -> Result<Vec<Row>, Error> {
    let put_away = [format!("mount/{files}-files"), "mount/log-bytes-per-file".to_owned()];
    let killed = ["mount/after-kill", "mount/after-kill/log"].map(str::to_owned);
    let wants = |cases: &[String]| cases.iter().any(|case| run.wants(case));
    let path = directory.join("restart");
    let _gone = Gone(path.clone());
    let mut rows = Vec::new();
    if wants(&put_away) {
        make_files(&new_pool(&path)?, files)?;
        let (mut times, mut bytes) = (Vec::new(), 0.0);
        for _ in 0..run.rounds {
            interrupt::check()?;
            let (seconds, of_log) = open_anew(&path)?;
            times.push(seconds);
            bytes = of_log;
        }
        let [mount, per_file] = put_away;
        rows.extend([row(mount, "s", &times), row(per_file, "bytes", &[bytes / files as f64])]);
    }
    if wants(&killed) {
        let (mut times, mut sizes) = (Vec::new(), Vec::new());
        for _ in 0..run.rounds {
            interrupt::check()?;
            drop(new_pool(&path)?);
            sizes.push(fill_and_kill(&path, logged_files)? / f64::from(1 << 20));
            times.push(open_anew(&path)?.0);
        }
        let [mount, log] = killed;
        rows.extend([row(mount, "s", &times), row(log, "MiB", &sizes)]);
    }
    Ok(rows)
}

/// Makes an empty pool on a file, in place of the one there.
fn new_pool(path: &Path) -> Result<Pool, Error> {
    disk::remove(path);
    disk::member(path, MEMBER_BYTES)?;
    Pool::create_on(&[path.to_owned()], &options()).map_err(Error::library("making a pool"))
}

/// Has another process open the pool: the heap of this one has room from pools before. Gives the seconds, and the bytes of the log.
fn open_anew(member: &Path) -> Result<(f64, f64), Error> {
    let system = |error| Error::system("running the process that opens the pool", error);
    let mut command = Command::new("/proc/self/exe");
    let output = command
        .args(["open-pool".as_ref(), member.as_os_str()])
        .stderr(Stdio::inherit());
    let said = output.output().map_err(system)?.stdout;
    let said = String::from_utf8_lossy(&said);
    let mut figures = said.split_whitespace().map_while(|figure| figure.parse().ok());
    let both = figures.next().zip(figures.next());
    both.ok_or_else(|| {
        Error::system(
            "opening a pool",
            std::io::Error::other("the process ended before it was open"),
        )
    })
}

/// Has another process fill the pool, and kills it; gives the bytes of its log.
fn fill_and_kill(member: &Path, files: usize) -> Result<f64, Error> {
    let system = |error| Error::system("running the process that is to be killed", error);
    let mut child = Command::new("/proc/self/exe")
        .args(["fill-pool".as_ref(), member.as_os_str()])
        .arg(files.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(system)?;
    let mut said = String::new();
    let output = child.stdout.take().expect("the stream is piped");
    let read = std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said);
    child.kill().map_err(system)?;
    child.wait().map_err(system)?;
    read.map_err(system)?;
    let bytes = said.trim().parse();
    bytes.map_err(|_| Error::system("filling a pool", std::io::Error::other("it ended before it was full")))
}

/// A file that goes with this.
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        disk::remove(&self.0);
    }
}
