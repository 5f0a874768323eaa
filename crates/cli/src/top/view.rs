//! The picture of `top`, drawn into a buffer of cells: a table of pools, and the chosen one's nodes, flows, history and requests.

use super::tasks::Tasks;
use crate::live::{Pool, Pools};
use crate::mountinfo::Device;
use crate::report::{KindTimes, Sample, drains};
use homenode::{Flow, MemberState, NodeId, NodeStatus};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;
use std::cmp::Reverse;

/// Widest bar, in cells.
const BAR: usize = 24;
/// Flows that are shown at most, the greatest ones.
const FLOWS_MAX: usize = 12;
/// Threads that are shown at most.
const THREADS_MAX: usize = 10;
/// Their files that are shown at most.
const FILES_MAX: usize = 3;

/// Order of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    Bytes,
    Remote,
    Requests,
    Used,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Name => Self::Bytes,
            Self::Bytes => Self::Remote,
            Self::Remote => Self::Requests,
            Self::Requests => Self::Used,
            Self::Used => Self::Name,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Bytes => "bytes",
            Self::Remote => "remote bytes",
            Self::Requests => "requests",
            Self::Used => "used",
        }
    }
}

/// State of the picture.
#[derive(Debug)]
pub(super) struct View {
    pub(super) pools: Pools,
    /// The chosen pool; another one is chosen where it is gone. Names are not unique: a pool that was unmounted from under open files keeps its own.
    chosen: Option<Device>,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    /// The first answers of servers have not come.
    pub(super) is_asking: bool,
    pub(super) has_help: bool,
    pub(super) has_colors: bool,
    is_utf8: bool,
    pub(super) tasks: Option<Tasks>,
}

impl View {
    pub(super) fn new(is_utf8: bool) -> Self {
        Self {
            pools: Pools::default(),
            chosen: None,
            sort: Sort::Name,
            is_paused: false,
            is_asking: false,
            has_help: false,
            has_colors: false,
            is_utf8,
            tasks: None,
        }
    }

    /// Shows what was seen, unless it is paused.
    pub(super) fn note(&mut self, pools: Pools) {
        if !self.is_paused {
            self.pools = pools;
        }
        self.is_asking = false;
        self.follow_chosen();
    }

    /// Shows threads of the pool that is chosen now, where threads are shown.
    pub(super) fn follow_chosen(&mut self) {
        let device = self.chosen().map(|pool| pool.device);
        if let Some(tasks) = &self.tasks
            && Some(tasks.device) != device
        {
            self.tasks = device.map(Tasks::of);
        }
    }

    /// Shows threads, or no longer.
    pub(super) fn show_tasks(&mut self) {
        self.tasks = match self.tasks.take() {
            None => self.chosen().map(|pool| Tasks::of(pool.device)),
            Some(_) => None,
        };
    }

    /// Chooses the pool so many places further.
    pub(super) fn choose(&mut self, by: isize) {
        let sorted = self.sorted();
        let Some(last) = sorted.len().checked_sub(1) else {
            return;
        };
        let at = self.place(&sorted);
        let to = at.saturating_add_signed(by).min(last);
        self.chosen = Some(sorted[to].device);
    }

    fn place(&self, sorted: &[&Pool]) -> usize {
        let is_chosen = |pool: &&Pool| Some(pool.device) == self.chosen;
        sorted.iter().position(is_chosen).unwrap_or(0)
    }

    fn chosen(&self) -> Option<&Pool> {
        let sorted = self.sorted();
        sorted.get(self.place(&sorted)).copied()
    }

    fn sorted(&self) -> Vec<&Pool> {
        let mut sorted: Vec<&Pool> = self.pools.pools.iter().collect();
        let key = |pool: &Pool| {
            let latest = pool.latest();
            match self.sort {
                Sort::Name => 0,
                Sort::Bytes => latest.and_then(Sample::bytes).unwrap_or(0),
                Sort::Remote => latest.and_then(Sample::remote_bytes).unwrap_or(0),
                Sort::Requests => latest.map_or(0, |sample| sample.rate(sample.requests)),
                Sort::Used => pool.report.as_ref().map_or(0, |report| report.pool.used_bytes),
            }
        };
        sorted.sort_by(|one, other| (Reverse(key(one)), &one.name).cmp(&(Reverse(key(other)), &other.name)));
        sorted
    }

    /// Draws it; returns how many lines it takes.
    pub(super) fn draw(&self, area: Rect, buffer: &mut Buffer) -> u16 {
        let lines = self.lines(area);
        let height = area.height as usize;
        let used = lines.len().min(height);
        for (row, line) in (area.y..).zip(lines.into_iter().take(height)) {
            line.render(Rect::new(area.x, row, area.width, 1), buffer);
        }
        u16::try_from(used).expect("it is at most the area's height")
    }

    fn lines(&self, area: Rect) -> Vec<Line<'static>> {
        let mut lines = vec![self.head(area.width as usize), Line::default()];
        if self.has_help {
            lines.extend(HELP.lines().map(|line| Line::raw(line.to_owned())));
            return lines;
        }
        let sorted = self.sorted();
        if sorted.is_empty() && self.pools.dead.is_empty() {
            lines.push(Line::raw(match self.is_asking {
                true => "asking the servers of this machine",
                false => "no pool is up: `homenode up DIR` mounts one",
            }));
            return lines;
        }
        let chosen = self.place(&sorted);
        let rows = (area.height as usize / 3).max(3);
        // So many that the chosen one is among them.
        let first = (chosen + 1).saturating_sub(rows);
        lines.push(self.dim(format!(
            "  {:<20} {:>7} {:>9} {:>9} {:>8} {:>9} {:>9}",
            "POOL", "LOCAL", "BYTES/s", "REMOTE/s", "REQ/s", "USED", "CAPACITY"
        )));
        for (place, pool) in sorted.iter().enumerate().skip(first).take(rows) {
            lines.extend(self.pool_line(pool, place == chosen));
        }
        let others = sorted.len().saturating_sub(rows);
        if others > 0 {
            lines.push(self.dim(format!("  and {others} more (up and down)")));
        }
        for dead in &self.pools.dead {
            lines.push(self.bad(format!(
                "  {dead}: its server was killed: `homenode down {dead}` clears it"
            )));
        }
        if self.pools.affinity_changes > 0 {
            lines.push(self.dim(format!(
                "  affinity: {} changes in force: `homenode affinity explain` tells why",
                self.pools.affinity_changes
            )));
        }
        if let Some(pool) = sorted.get(chosen) {
            self.write_pool(&mut lines, pool, area);
        }
        lines
    }

    fn head(&self, width: usize) -> Line<'static> {
        let health = self.pools.health();
        let style = match health == "ok" {
            true => self.style(Color::Green),
            false => self.style(Color::Red),
        };
        let state = if self.is_paused { "  PAUSED" } else { "" };
        let begin = format!(
            "homenode top  {} by {}{state}  health: ",
            match self.pools.pools.len() {
                1 => "1 pool".to_owned(),
                count => format!("{count} pools"),
            },
            self.sort.name()
        );
        let room = width.saturating_sub(begin.chars().count());
        let health: String = health.chars().take(room).collect();
        Line::from(vec![Span::raw(begin), Span::styled(health, style)])
    }

    fn pool_line(&self, pool: &Pool, is_chosen: bool) -> Vec<Line<'static>> {
        let mark = if is_chosen { ">" } else { " " };
        let name = shortened(&pool.name, 20);
        let Some(report) = &pool.report else {
            let why = pool.silent.as_deref().unwrap_or("asked");
            return vec![self.bad(format!("{mark} {name:<20} {why}"))];
        };
        let latest = pool.latest();
        let local = latest.and_then(Sample::local_percent);
        let line = format!(
            "{mark} {name:<20} {:>7} {:>9} {:>9} {:>8} {:>9} {:>9}",
            local.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1} %")),
            latest
                .and_then(Sample::bytes)
                .map_or_else(|| "not seen".to_owned(), size),
            latest
                .and_then(Sample::remote_bytes)
                .map_or_else(|| "-".to_owned(), size),
            latest.map_or(0, |sample| sample.rate(sample.requests)),
            size(report.pool.used_bytes),
            size(report.pool.capacity_bytes),
        );
        let mut lines = vec![match (&pool.silent, is_chosen) {
            (Some(_), _) => self.dim(line),
            (None, true) => Line::styled(line, self.style(Color::Cyan)),
            (None, false) => Line::raw(line),
        }];
        if !report.mounted {
            lines.push(self.dim("    detached, waits for open files".to_owned()));
        }
        let health = pool.health();
        if health != "ok" {
            lines.push(self.bad(format!("    {health}")));
        }
        lines
    }

    fn write_pool(&self, lines: &mut Vec<Line<'static>>, pool: &Pool, area: Rect) {
        let Some(report) = &pool.report else { return };
        let Some(latest) = pool.latest() else {
            lines.push(self.dim("the server has sampled nothing yet".to_owned()));
            return;
        };
        let arrow = if self.is_utf8 { "→" } else { "->" };
        // They were asked for, so they come before what a machine of many nodes fills a small terminal with.
        self.write_tasks(lines, arrow);
        lines.push(Line::default());
        lines.push(self.dim(format!(
            "{:<5} {:<BAR$} {:>6} {:>9} {:>9} {:>9} {:>9}",
            "NODE", "USED", "", "LOCAL/s", "FROM/s", "TO/s", "SPILLED/s"
        )));
        report
            .pool
            .nodes
            .iter()
            .for_each(|node| lines.push(self.node_line(node, latest)));
        let flows = latest.flows.iter().flatten().filter(|flow| !flow.is_local());
        let mut flows: Vec<&Flow> = flows.collect();
        flows.sort_by_key(|flow| (Reverse(flow.bytes), flow.from, flow.home));
        let most = flows.first().map_or(1, |flow| flow.bytes);
        for flow in flows.iter().take(FLOWS_MAX) {
            lines.push(Line::from(vec![
                Span::raw(format!(
                    "{} {arrow} {:<2} {:>9}/s {:>9} ",
                    flow.from,
                    flow.home.0,
                    size(latest.rate(flow.bytes)),
                    operations(latest.rate(flow.operations))
                )),
                Span::styled(self.bar(flow.bytes, most, BAR), self.style(Color::Yellow)),
            ]));
        }
        if latest.flows.is_none() {
            lines.push(self.dim("bytes of this mount are not seen: see homenode-status(1), local_percent".to_owned()));
        }
        lines.extend(drains(report).map(Line::from));
        lines.push(Line::default());
        let width = (area.width as usize).saturating_sub(38);
        let history = |of: &dyn Fn(&Sample) -> Option<u64>| {
            let last = pool
                .samples
                .iter()
                .rev()
                .take(width)
                .map(|sample| of(sample))
                .collect::<Vec<_>>();
            self.plot(last.into_iter().rev().collect::<Vec<_>>().as_slice())
        };
        if latest.flows.is_some() {
            lines.push(Line::raw(format!("bytes/s  {}", history(&Sample::bytes))));
            lines.push(Line::raw(format!("remote/s {}", history(&Sample::remote_bytes))));
        }
        lines.push(Line::raw(format!(
            "req/s    {}",
            history(&|sample| Some(sample.rate(sample.requests)))
        )));
        lines.extend(latest.times.iter().map(|times| times_line(times, latest)));
        for slice in latest
            .cache
            .iter()
            .filter(|slice| slice.copies + slice.fetched_bytes + slice.saved_bytes > 0)
        {
            lines.push(Line::raw(format!(
                "cache {:<7} {:>8} copies/s  from disks {}/s  to disks {}/s",
                slice.node.to_string(),
                latest.rate(slice.copies),
                size(latest.rate(slice.fetched_bytes)),
                size(latest.rate(slice.saved_bytes))
            )));
        }
        lines.push(self.dim(format!(
            "server {}: memory {}, CPU {:.1} %, transport {}, data {}; errors {}/s; moved {}/s",
            report.pid,
            size(latest.server_bytes),
            latest.server_cpu_ns as f64 / 10_000.0 / latest.span_ms.max(1) as f64,
            report.fuse.transport,
            report.fuse.data,
            latest.rate(latest.errors),
            size(latest.rate(latest.moved_bytes))
        )));
    }

    fn node_line(&self, node: &NodeStatus, latest: &Sample) -> Line<'static> {
        let flows = || latest.flows.iter().flatten();
        let rate = |is_one: &dyn Fn(&&Flow) -> bool| {
            latest.rate(flows().filter(|flow| is_one(flow)).map(|flow| flow.bytes).sum())
        };
        let number: NodeId = node.node;
        let spilled = latest
            .spills
            .iter()
            .filter(|spill| spill.from == number)
            .map(|spill| spill.bytes)
            .sum();
        let seen = |rate: u64| match latest.flows {
            Some(_) => size(rate),
            None => "-".to_owned(),
        };
        let color = if node.state == MemberState::Fat {
            Color::Red
        } else {
            Color::Green
        };
        let percent = (u128::from(node.used_bytes) * 100).checked_div(u128::from(node.capacity_bytes));
        Line::from(vec![
            Span::raw(format!("{:<5} ", node.node.0)),
            Span::styled(
                format!("{:<BAR$}", self.bar(node.used_bytes, node.capacity_bytes, BAR)),
                self.style(color),
            ),
            Span::raw(format!(
                " {:>6} {:>9} {:>9} {:>9} {:>9}",
                percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %")),
                seen(rate(&|flow| flow.is_local() && flow.from == number)),
                seen(rate(&|flow| !flow.is_local() && flow.from == number)),
                seen(rate(&|flow| !flow.is_local() && flow.home == number)),
                size(latest.rate(spilled)),
            )),
        ])
    }

    fn write_tasks(&self, lines: &mut Vec<Line<'static>>, arrow: &str) {
        let Some(tasks) = &self.tasks else { return };
        let told = tasks.told();
        lines.push(Line::default());
        lines.push(self.dim(format!(
            "{:>8} {:<16} {:>9}  {:<32} {}",
            "THREAD", "NAME", "BYTES/s", "AT", "BUSIEST FILE"
        )));
        for busy in told.threads.iter().take(THREADS_MAX) {
            let homes = busy
                .homes
                .iter()
                .map(|(node, rate)| format!("{arrow} {node}: {}", size(*rate)));
            let homes = homes.collect::<Vec<_>>().join(", ");
            let file = busy.file.map_or_else(String::new, |inode| format!("inode {inode}"));
            lines.push(Line::raw(format!(
                "{:>8} {:<16} {:>9}  {:<32} {file}",
                busy.thread,
                shortened(&busy.name, 16),
                size(busy.rate),
                shortened(&homes, 32)
            )));
        }
        if !told.files.is_empty() {
            let file = |(inode, rate): &(u64, u64)| format!("inode {inode} {}/s", size(*rate));
            let files: Vec<_> = told.files.iter().take(FILES_MAX).map(file).collect();
            lines.push(Line::raw(format!("busiest files: {}", files.join(", "))));
        }
        if told.threads.is_empty() {
            let text = if told.is_known {
                "no thread moved bytes"
            } else {
                "the server is counting"
            };
            lines.push(self.dim(text.to_owned()));
        }
        lines.extend(told.unseen.iter().map(|unseen| self.dim(format!("not seen: {unseen}"))));
    }

    /// A bar of so many cells where `value` is `most`.
    fn bar(&self, value: u64, most: u64, cells: usize) -> String {
        let eighths = (u128::from(value) * 8 * cells as u128)
            .checked_div(u128::from(most))
            .unwrap_or(0);
        let eighths = usize::try_from(eighths).unwrap_or(usize::MAX).min(8 * cells);
        if !self.is_utf8 {
            return "#".repeat(eighths.div_ceil(8));
        }
        let mut bar = "█".repeat(eighths / 8);
        bar.extend(EIGHTHS_WIDE.get((eighths % 8).wrapping_sub(1)));
        bar
    }

    /// Columns of values, the greatest of which is told behind them. Values that are not known are blank.
    fn plot(&self, values: &[Option<u64>]) -> String {
        let most = values.iter().flatten().copied().max().unwrap_or(0);
        let column = |value: &Option<u64>| {
            let Some(value) = value else { return ' ' };
            let step = (u128::from(*value) * 8).div_ceil(u128::from(most.max(1)));
            let step = usize::try_from(step).unwrap_or(8).min(8);
            let columns = if self.is_utf8 { COLUMNS_HIGH } else { COLUMNS_ASCII };
            columns[step]
        };
        let plot: String = values.iter().map(column).collect();
        format!(
            "{plot} at most {}",
            if most >= 1 << 20 { size(most) } else { most.to_string() }
        )
    }

    fn style(&self, color: Color) -> Style {
        match self.has_colors {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }

    fn dim(&self, text: String) -> Line<'static> {
        Line::styled(text, self.style(Color::DarkGray))
    }

    fn bad(&self, text: String) -> Line<'static> {
        Line::styled(text, self.style(Color::Red))
    }
}

const EIGHTHS_WIDE: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
const COLUMNS_HIGH: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const COLUMNS_ASCII: [char; 9] = [' ', '.', '.', ':', ':', '+', '+', '#', '#'];

const HELP: &str = "\
up, down   choose a pool
s          sort pools by name, bytes, remote bytes, requests, used
p, space   pause, and go on
t          threads of the chosen pool, as far as its server sees them
h, ?       this help, and back
q, Esc     end

LOCAL is the share of the bytes read and written that lay on the node of the CPU. FROM/s are
bytes that a node's CPUs moved on other nodes, TO/s bytes that others moved on it. Requests
are those that reach the server: with data kernel, the kernel reads and writes by itself.";

fn times_line(times: &KindTimes, latest: &Sample) -> Line<'static> {
    let below = |percent| {
        let time = times.below(percent);
        time.map_or_else(
            || format!("{:>8}", "> 1 s"),
            |time| format!("{:>8}", duration(time.as_nanos())),
        )
    };
    let mean = u128::from(times.sum_ns) / u128::from(times.requests().max(1));
    Line::raw(format!(
        "{:<6} {:>9}/s  mean {:>8}  99 % below {}  99.9 % below {}",
        times.kind,
        latest.rate(times.requests()),
        duration(mean),
        below(99.0),
        below(99.9)
    ))
}

/// The end of a text that is too long is what tells it apart.
fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let end: String = text.chars().skip(length - (width - 1)).collect();
    format!("~{end}")
}

/// Operations a second, in four digits at most; empty where none are counted.
fn operations(rate: u64) -> String {
    match rate {
        0 => String::new(),
        1..10_000 => format!("{rate} op/s"),
        10_000..10_000_000 => format!("{}k op/s", rate / 1000),
        _ => format!("{}M op/s", rate / 1_000_000),
    }
}

/// Bytes with three digits or four.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    let digits = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

fn duration(ns: u128) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 << 20, "10.0 MiB"),
            (999 << 30, "999 GiB"),
            ((1 << 40) - 1, "1024 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
        let times = [
            (0, "0 ns"),
            (9_999, "9999 ns"),
            (16_384, "16 us"),
            (20_000_000, "20 ms"),
            (1 << 34, "17 s"),
        ];
        for (ns, text) in times {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(shortened("/mnt/long", 6), "~/long");
    }
}
