//! `homenode affinity run`: plans and acts once a period until it is told to end, then takes everything back.
//!
//! What is absent: no signal, error or killed earlier run leaves a change behind that is not in the journal; no failure of
//! one period ends it. Cost: a period is sensed, decided, and rarely acted upon; the machine's hardware, other programs and
//! what was changed are looked at in every [`AROUND_PERIODS`]th period, or when CPUs or interrupts have come or gone.

mod daemon;

use super::known::{JournalArgs, failure, unopened};
use super::metrics::Metrics;
use super::revert::{end, lines, summary};
use super::settings::{Settings, SettingsArgs, period};
use crate::failure::Result;
use crate::http::{Address, Server};
use crate::signals;
use clap::Args;
use daemon::Daemon;
use homenode_linux::affinity::act::{Actor, Live};
use sd_notify::NotifyState;
use signal_hook::consts::SIGHUP;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Plan and move once a second until SIGINT (Ctrl-C) or SIGTERM, then revert all changes.
///
/// A thread that has moved almost nothing for a minute or longer gets its mask back before that.
/// Changes that `apply` or a killed `run` left are reverted first. SIGHUP reloads the configuration; if the new one has a mistake, the
/// mistake is logged and the old configuration stays. Each move is logged with its reason; HOMENODE_LOG sets the level.
/// homenode-affinity.service runs this command under systemd.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// Seconds between two plans. Default: 1, or as configured.
    #[arg(long, value_name = "SECONDS", value_parser = period)]
    period: Option<Duration>,
    /// Serve Prometheus metrics: unix:/PATH, 127.0.0.1:PORT or [::1]:PORT. Default: as configured, else no metrics.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Address>,
}

impl RunArgs {
    fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::read(&self.settings)?;
        settings.period = self.period.unwrap_or(settings.period);
        settings.metrics = self.metrics.clone().or(settings.metrics);
        Ok(settings)
    }
}

pub(super) fn run(args: &RunArgs) -> Result<()> {
    // From here on a signal is a message, so that none of them leaves a change behind.
    let ends = signals::that_end().into_iter().filter(|signal| *signal != SIGHUP);
    let signals = signals::listen(&ends.chain([SIGHUP]).collect::<Vec<_>>())?;
    let mut actor = args.journal.open().map_err(unopened)?;
    if !actor.is_clean() {
        tracing::info!("an earlier run has left changes: taking them back");
        // What fails stays in the journal, with what was there first, and is tried again at the end.
        take_back(&mut actor).unwrap_or_else(|failure| tracing::error!("{failure}"));
    }
    // After that: with a mistake in the configuration an earlier run's changes do not stay in force.
    let settings = args.settings()?;
    let metrics = Metrics::default();
    let server = serve(&settings, &metrics)?;
    let daemon = Daemon::new(settings, actor, metrics.clone())?;
    tell(&[NotifyState::Ready]);
    tracing::info!("looking at the machine every {:?}", daemon.settings().period);
    let mut actor = watch(args, daemon, server, &metrics, &signals);
    tell(&[NotifyState::Stopping]);
    take_back(&mut actor)
}

/// Until a signal says that it is to end.
fn watch(
    args: &RunArgs,
    mut daemon: Daemon,
    mut server: Option<Server>,
    metrics: &Metrics,
    signals: &Receiver<i32>,
) -> Actor<Live> {
    let watchdog = sd_notify::watchdog_enabled().map(|within| within / 2);
    let mut next = Instant::now() + daemon.settings().period;
    loop {
        let left = next.saturating_duration_since(Instant::now());
        match signals.recv_timeout(watchdog.map_or(left, |within| within.min(left))) {
            Ok(SIGHUP) => match reload(args, &mut daemon, &mut server, metrics) {
                Ok(()) => {
                    tracing::info!("the configuration was reloaded");
                    next = next.min(Instant::now() + daemon.settings().period);
                }
                Err(failure) => tracing::error!("{failure}: the configuration stays as it was"),
            },
            Ok(signal) => {
                tracing::info!("signal {signal}: taking everything back");
                return daemon.into_actor();
            }
            Err(RecvTimeoutError::Disconnected) => {
                tracing::error!("the thread that listens for signals is gone: taking everything back");
                return daemon.into_actor();
            }
            Err(RecvTimeoutError::Timeout) => {
                let mut states = vec![NotifyState::Watchdog];
                let status;
                if Instant::now() >= next {
                    daemon.period();
                    // One that took too long is not made up for.
                    let (now, period) = (Instant::now(), daemon.settings().period);
                    next = if next + period > now {
                        next + period
                    } else {
                        now + period
                    };
                    status = daemon.status();
                    states.push(NotifyState::Status(&status));
                }
                tell(&states);
            }
        }
    }
}

/// Nothing changes when something is wrong.
fn reload(args: &RunArgs, daemon: &mut Daemon, server: &mut Option<Server>, metrics: &Metrics) -> Result<()> {
    let settings = args.settings()?;
    if settings.metrics.as_ref() != server.as_ref().map(Server::address) {
        *server = serve(&settings, metrics)?;
    }
    daemon.reconfigure(settings);
    Ok(())
}

fn serve(settings: &Settings, metrics: &Metrics) -> Result<Option<Server>> {
    let Some(address) = &settings.metrics else {
        return Ok(None);
    };
    let server = metrics.serve(address)?;
    tracing::info!("metrics at {}", address.page("metrics"));
    Ok(Some(server))
}

fn take_back(actor: &mut Actor<Live>) -> Result<()> {
    let reverted = actor.revert().map_err(failure)?;
    for line in lines(&reverted) {
        tracing::info!("{line}");
    }
    tracing::info!("{}", summary(&reverted));
    end(&reverted)
}

/// To systemd, when that started it as a service.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell systemd ($NOTIFY_SOCKET): {error}");
    }
}
