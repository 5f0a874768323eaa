//! `homenode top`: the pools of this machine, live in a terminal.

mod tasks;
mod view;

use crate::control::protocol::{STATUS_VERSION, StatusReport};
use crate::failure::{Cannot, Failure, Result, fail};
use crate::live::{self, Pools, Watch};
use crate::report::Sample;
use clap::Args;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::isatty;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{stdin, stdout};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use view::View;

/// Longest wait for a key before news of the pools are drawn.
const KEY_WAIT: Duration = Duration::from_millis(200);
/// Time in which a signal ends the drawing.
const END_WAIT: Duration = Duration::from_secs(2);
/// Time for the terminal to take what restores it.
const RESTORE_WAIT: Duration = Duration::from_millis(200);
/// Width of a picture that is printed where nothing tells another.
const COLUMNS: u16 = 100;
/// Most lines of a picture that is printed.
const LINES: u16 = 200;

/// Watch the pools of this machine: where their bytes go, live.
///
/// Keys: up and down choose a pool, `s` sorts, `p` pauses, `t` shows the busiest threads of the chosen pool, the homes of their bytes and the busiest files, `h` helps, `q` ends.
///
/// The servers sample themselves once a second and keep ten minutes; viewers read what is kept. Only `t` has the kernel count reads and
/// writes by thread, where it does not do so already.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Print one picture and end.
    #[arg(long)]
    once: bool,
    /// Print what is known, ten minutes of it, as one JSON object.
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// Draw without colours, as with NO_COLOR in the environment.
    #[arg(long)]
    no_color: bool,
    /// Draw with ASCII characters only. The default where the locale is not UTF-8.
    #[arg(long)]
    ascii: bool,
}

#[derive(Debug, Serialize)]
struct Json<'a> {
    output_version: u32,
    /// `ok`, or what is wrong.
    health: String,
    pools: Vec<JsonPool<'a>>,
    /// Mounts whose servers were killed.
    dead: &'a [String],
    /// Changes of `homenode affinity` in force.
    affinity_changes: usize,
}

#[derive(Debug, Serialize)]
struct JsonPool<'a> {
    name: &'a str,
    /// Why nothing new is known; null where all is well.
    silent: Option<&'a str>,
    report: Option<&'a StatusReport>,
    samples: Vec<&'a Sample>,
}

impl<'a> Json<'a> {
    fn of(pools: &'a Pools) -> Self {
        let pool = |pool: &'a live::Pool| JsonPool {
            name: &pool.name,
            silent: pool.silent.as_deref(),
            report: pool.report.as_deref(),
            samples: pool.samples.iter().map(Arc::as_ref).collect(),
        };
        Self {
            output_version: STATUS_VERSION,
            health: pools.health(),
            pools: pools.pools.iter().map(pool).collect(),
            dead: &pools.dead,
            affinity_changes: pools.affinity_changes,
        }
    }
}

pub(crate) fn run(args: &TopArgs) -> Result<()> {
    live::check()?;
    if args.json {
        return crate::print_json(&Json::of(&live::look()?));
    }
    let mut view = View::new(!args.ascii && is_utf8());
    view.has_colors = !args.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if args.once {
        view.pools = live::look()?;
        return crate::print_text(&picture(&view));
    }
    if !isatty(stdin()) || !isatty(stdout()) {
        fail!("top draws in a terminal, and this is none: --once prints one picture, --json what is known");
    }
    watch(view)
}

/// Whether the locale has more than ASCII.
fn is_utf8() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(set)
        .unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Draws a picture as text, as high as it needs to be.
fn picture(view: &View) -> String {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let area = Rect::new(0, 0, columns.unwrap_or(COLUMNS).clamp(40, 500), LINES);
    let mut buffer = Buffer::empty(area);
    let used = view.draw(area, &mut buffer);
    let line = |row: u16| {
        let cells = (0..area.width).map(|column| buffer[(column, row)].symbol());
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    (0..used).map(line).collect()
}

/// Draws until a key or a signal ends it. The terminal is as before afterwards, also behind a panic.
fn watch(mut view: View) -> Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    end_by_signals(Arc::clone(&is_over))?;
    let pools = Watch::start()?;
    let broken = |error: std::io::Error| Failure::new(format!("cannot draw in this terminal: {error}: use --once"));
    view.is_asking = true;
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let (mut looks, mut is_due) = (0, true);
    let result = loop {
        // Reading a terminal that is gone would never come back.
        if is_gone() || is_over.load(Ordering::Relaxed) {
            break Ok(());
        }
        if pools.looks() != looks {
            let (seen, now) = pools.wait(looks, Duration::ZERO);
            looks = now;
            view.note(seen);
            is_due = true;
        }
        // Only after news, a key or a change of the terminal's size.
        if is_due {
            let drawn = terminal.draw(|frame| {
                let area = frame.area();
                view.draw(area, frame.buffer_mut());
            });
            if let Err(error) = drawn {
                break Err(broken(error));
            }
        }
        is_due = false;
        match event::poll(KEY_WAIT) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => break Err(broken(error)),
        }
        is_due = true;
        match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                if press(&mut view, key).is_break() {
                    break Ok(());
                }
            }
            Ok(_) => {}
            Err(error) => break Err(broken(error)),
        }
    };
    ratatui::try_restore().map_err(broken)?;
    result
}

/// Sets `is_over` by a signal; ends the process when that does not help, as the drawing thread may wait for a key of a terminal that is gone.
fn end_by_signals(is_over: Arc<AtomicBool>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).cannot("listen for signals")?;
    let end = move || {
        if signals.forever().next().is_some() {
            is_over.store(true, Ordering::Relaxed);
            std::thread::sleep(END_WAIT);
            // The drawing thread waits for its terminal. This needs nothing of it:
            let _ = ratatui::crossterm::terminal::disable_raw_mode();
            // The rest waits, too, where a terminal takes no output.
            std::thread::spawn(ratatui::try_restore);
            std::thread::sleep(RESTORE_WAIT);
            std::process::exit(0);
        }
    };
    let spawned = std::thread::Builder::new().name("signals".into()).spawn(end);
    spawned.map(drop).cannot("listen for signals")
}

/// Whether the terminal has hung up.
fn is_gone() -> bool {
    let input = stdin();
    let mut ends = [PollFd::new(&input, PollFlags::empty())];
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut ends, Some(&Timespec::default())).is_err() || ends[0].revents().intersects(gone)
}

fn press(view: &mut View, key: KeyEvent) -> ControlFlow<()> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return ControlFlow::Break(()),
        KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
        KeyCode::Up | KeyCode::Char('k') => view.choose(-1),
        KeyCode::Down | KeyCode::Char('j') => view.choose(1),
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Char('p' | ' ') => view.is_paused = !view.is_paused,
        KeyCode::Char('t') => view.show_tasks(),
        KeyCode::Char('h' | '?') => view.has_help = !view.has_help,
        _ => {}
    }
    view.follow_chosen();
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests;
