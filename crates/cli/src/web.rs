//! `homenode web`: the pools of this machine on a page, and their metrics. Nothing can be changed there.

mod live;
mod metrics;

use crate::affinity::METRICS_TYPE;
use crate::failure::{Cannot, Failure, Result, fail};
use crate::http::{Address, Asked, Page, Pages, Server};
use crate::live::Watch;
use crate::signals;
use crate::up::tell_systemd;
use clap::Args;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("web/page.html");
/// Shortest token that is taken from a file.
const TOKEN_MIN: usize = 16;
/// Largest file of a token.
const TOKEN_BYTES_MAX: usize = 4096;
/// Longest run of a command whose output is shown.
const LOOK_TIME: Duration = Duration::from_secs(60);
/// Longest output of such a command.
const LOOK_BYTES_MAX: u64 = 8 << 20;

/// Show the pools of this machine on a web page: where their bytes go, live.
///
/// The page shows nodes and flows, ten minutes of history, spills, the findings of `doctor`, and what `affinity plan` would do. It changes nothing.
/// /metrics has the pools' metrics for Prometheus.
///
/// A port asks for a token, as every user of the machine can connect to it: one from --token-file, or a new one, which is part of the address that is
/// printed. A unix socket is open to root alone, without a token. The server runs until Ctrl-C.
///
/// Other machines can connect only where --listen names such an address; that needs --token-file. The bytes are not encrypted: put a proxy with TLS
/// in front of it, or use ssh -L.
#[derive(Args, Debug)]
pub(crate) struct WebArgs {
    /// Port or socket: 127.0.0.1:PORT, [::1]:PORT, another address of this machine, or unix:/PATH.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7071", value_parser = Address::any)]
    listen: Address,
    /// File with the token, which no other user may read: at least 16 characters.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Pages of the pools.
struct OfPools {
    watch: Watch,
    /// `None` where whoever can connect may see all.
    token: Option<String>,
    /// Held by a look at the machine. The last one, if it was ended and has not gone.
    looking: Mutex<Option<Child>>,
}

pub(crate) fn run(args: &WebArgs) -> Result<()> {
    let mut signals = Signals::new(signals::that_end()).cannot("listen for signals")?;
    crate::live::check()?;
    if args.listen.is_remote() && args.token_file.is_none() {
        fail!(
            "{} can be reached from other machines: --token-file is needed there",
            args.listen
        );
    }
    let token = match (&args.token_file, &args.listen) {
        (Some(file), _) => Some(token_in(file)?),
        (None, Address::Unix(_)) => None,
        (None, Address::Tcp(_)) => Some(random()?),
    };
    let pages = OfPools {
        watch: Watch::start()?,
        token: token.clone(),
        looking: Mutex::default(),
    };
    let server = Server::start(&args.listen, 0o600, "the page", Arc::new(pages))?;
    let address = server.address();
    crate::print_line(&match (&args.token_file, token) {
        (None, Some(token)) => format!("{} (ends by Ctrl-C)", address.page(&format!("#token={token}"))),
        (Some(file), _) => format!("{address} with the token in {} (ends by Ctrl-C)", file.display()),
        (None, None) => format!("{address} (ends by Ctrl-C)"),
    })?;
    tell_systemd();
    signals.forever().next();
    Ok(())
}

fn random() -> Result<String> {
    let mut bytes = [0_u8; 16];
    match getrandom(&mut bytes[..], GetRandomFlags::empty()) {
        Ok(16) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        Ok(_) => fail!("cannot make a token: too few random bytes"),
        Err(error) => fail!("cannot make a token: {error}"),
    }
}

fn token_in(path: &Path) -> Result<String> {
    let cannot = |error: std::io::Error| {
        let make = "`(umask 077; openssl rand -hex 16 >FILE)` makes one; FILE's directory must exist";
        Failure::new(format!("cannot read the token in {}: {error}; {make}", path.display()))
    };
    // A pipe would wait for its writer.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(nonblocking).open(path);
    let file = opened.map_err(cannot)?;
    let found = file.metadata().map_err(cannot)?;
    if !found.is_file() {
        fail!("the token's file {} is no regular file", path.display());
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 || ![0, rustix::process::geteuid().as_raw()].contains(&found.uid()) {
        fail!(
            "others may read or change the token in {} (owner {}, mode {mode:03o}): `chmod 600` it, and let root own it",
            path.display(),
            found.uid()
        );
    }
    let mut text = String::new();
    file.take(TOKEN_BYTES_MAX as u64)
        .read_to_string(&mut text)
        .map_err(cannot)?;
    let token = text.trim();
    if !(TOKEN_MIN..TOKEN_BYTES_MAX).contains(&token.len())
        || !token
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte))
    {
        fail!(
            "the token in {} needs {TOKEN_MIN} characters or more, and fewer than {TOKEN_BYTES_MAX}: letters, digits and -_.~ (`openssl rand -hex 16` makes one)",
            path.display()
        );
    }
    Ok(token.to_owned())
}

/// Whether texts are equal, in a time that tells nothing of where they differ.
fn is_same(one: &str, other: &str) -> bool {
    let differences = one
        .bytes()
        .zip(other.bytes())
        .fold(0, |sum, (one, other)| sum | (one ^ other));
    one.len() == other.len() && differences == 0
}

impl OfPools {
    /// Whether the asker has the token, or needs none.
    fn knows(&self, asked: &Asked<'_>) -> bool {
        let Some(token) = &self.token else { return true };
        let Some((scheme, given)) = asked.header("authorization").and_then(|value| value.split_once(' ')) else {
            return false;
        };
        scheme.eq_ignore_ascii_case("bearer") && is_same(given.trim_start(), token)
    }

    /// The page, which has no figures itself: its script asks for them with the token that is behind the `#` of its address.
    fn page() -> Page {
        let Ok(nonce) = random() else {
            return Page::refused(StatusCode::INTERNAL_SERVER_ERROR, "no random bytes for the page");
        };
        let mut page = Page::new("text/html; charset=utf-8", PAGE.replace("NONCE", &nonce));
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        let policy = HeaderValue::try_from(policy).expect("it has no control characters");
        page.headers.push((CONTENT_SECURITY_POLICY, policy));
        page
    }

    /// The output of a command that looks at the machine; one at a time.
    fn look(&self, arguments: &[&str]) -> Page {
        let Some(mut ended) = self.looking.try_lock() else {
            return Page::refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "another look at the machine is under way: try again",
            );
        };
        if ended.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return Page::refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "an earlier look at the machine waits in the kernel, perhaps for a filesystem whose server does not answer",
            );
        }
        match output_of(arguments, &mut ended) {
            Ok(output) => Page::new(TEXT, output),
            Err(why) => Page::refused(
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("homenode {}: {why}", arguments.join(" ")),
            ),
        }
    }
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Runs this program with other arguments; its output, or what it complained of. One that takes too long is ended, and put into `ended`: not even SIGKILL
/// ends a process while it waits for some filesystems.
fn output_of(arguments: &[&str], ended: &mut Option<Child>) -> std::result::Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut command = Command::new("/proc/self/exe");
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(text)?;
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = pipe.map_or(Ok(0), |pipe| pipe.take(LOOK_BYTES_MAX).read_to_end(&mut bytes));
            read.map(|_| bytes)
        })
    };
    let output = read(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let errors = read(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(text)? {
            Some(status) => break status,
            None if begun.elapsed() > LOOK_TIME => {
                // It has ended meanwhile, perhaps.
                let _ = child.kill();
                *ended = Some(child);
                return Err(format!("took longer than {} s", LOOK_TIME.as_secs()));
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let taken = |reader: thread::JoinHandle<std::io::Result<Vec<u8>>>| {
        reader.join().map_err(|_| "its output was lost".to_owned())
    };
    let output = taken(output)?.map_err(text)?;
    if output.is_empty() && !status.success() {
        let errors = taken(errors)?.map_err(text)?;
        return Err(String::from_utf8_lossy(&errors).trim().to_owned());
    }
    Ok(output)
}

impl Pages for OfPools {
    fn at_once(&self, asked: &Asked<'_>) -> Option<Page> {
        match asked.path {
            "/" => Some(Self::page()),
            "/favicon.ico" => Some(Page::new("image/x-icon", Bytes::new())),
            _ if !self.knows(asked) => {
                let why = "a token is needed: open the address that `homenode web` printed, or send `Authorization: Bearer TOKEN`";
                Some(Page::refused(StatusCode::UNAUTHORIZED, why))
            }
            _ => None,
        }
    }

    fn get(&self, asked: &Asked<'_>) -> Page {
        let known = || self.watch.wait(0, Duration::from_secs(2)).0;
        match asked.path {
            "/live" => {
                let since_ms = asked.field("since").and_then(|since| since.parse().ok()).unwrap_or(0);
                let live = live::Live::of(&known(), since_ms);
                let text = serde_json::to_vec(&live).expect("a report always serializes to JSON");
                Page::new(JSON, text)
            }
            "/metrics"
                if asked
                    .header("accept")
                    .is_some_and(|accept| accept.contains("openmetrics")) =>
            {
                Page::new(METRICS_TYPE, metrics::text(known()))
            }
            "/metrics" => Page::new(metrics::CLASSIC_TYPE, metrics::classic(&metrics::text(known()))),
            "/doctor" => self.look(&["doctor"]),
            "/plan" => self.look(&["affinity", "plan"]),
            _ => Page::refused(StatusCode::NOT_FOUND, "there are /, /live, /metrics, /doctor and /plan"),
        }
    }
}

#[cfg(test)]
mod tests;
