//! Conversations over a pair of sockets.

use super::*;
use crate::says::says;
use std::sync::atomic::{AtomicBool, Ordering};

type Handled = std::result::Result<Outcome, Refusal>;

impl<F> Handler for F
where
    F: Fn(Request, Option<u32>, &mut dyn FnMut(u64, u64)) -> Handled + Send + Sync + 'static,
{
    fn handle(&self, request: Request, user: Option<u32>, progress: &mut dyn FnMut(u64, u64)) -> Handled {
        self(request, user, progress)
    }
}

fn echo(request: Request, user: Option<u32>, progress: &mut dyn FnMut(u64, u64)) -> Handled {
    assert_eq!(user, Some(rustix::process::geteuid().as_raw()));
    match request {
        Request::PoolDrain { member } => {
            thread::sleep(PROGRESS_PERIOD);
            progress(1, 2);
            progress(2, 2);
            Ok(Outcome::Drained {
                bytes: u64::from(member),
            })
        }
        Request::PoolRemove { .. } => panic!("planned panic"),
        _ => Err(Refusal::new("no")),
    }
}

/// Sends lines, and returns the replies and how the conversation ended.
fn talk_as(rights: Rights, lines: &[u8]) -> (Vec<Reply>, io::Result<()>) {
    let (client, server) = UnixStream::pair().unwrap();
    let activity = Arc::new(Activity::default());
    let thread_activity = Arc::clone(&activity);
    let thread = thread::spawn(move || converse(&server, &echo, &thread_activity, (FIRST_TIMEOUT, rights)));
    (&client).write_all(lines).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let lines = BufReader::new(&client).lines().map_while(std::result::Result::ok);
    let replies = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
    let end = thread.join().unwrap();
    assert_eq!(activity.counts.lock().requests, 0, "no request is counted any more");
    (replies, end)
}

fn talk(lines: &[u8]) -> Vec<Reply> {
    let (replies, end) = talk_as(Rights::All, lines);
    end.unwrap();
    replies
}

#[test]
fn a_panic_is_answered_and_the_connection_stays_open() {
    let replies = talk(b"{\"request\":\"pool_remove\",\"member\":1}\n{\"request\":\"status\"}\n");
    assert_eq!(replies.len(), 2);
    assert!(matches!(&replies[0], Reply::Failed(refusal) if refusal.message.contains("planned panic")));
}

#[test]
fn readers_change_nothing() {
    for request in ["\"pool_drain\",\"member\":1", "\"down\",\"lazy\":true", "\"tasks\""] {
        let lines = format!("{{\"request\":\"status\"}}\n{{\"request\":{request}}}\n{{\"request\":\"status\"}}\n");
        let (replies, end) = talk_as(Rights::Reading, lines.as_bytes());
        // The handler's own answer, a refusal, and no more.
        let [Reply::Failed(answer), Reply::Failed(refusal)] = &replies[..] else {
            panic!("{replies:?}");
        };
        assert_eq!(answer.message, "no");
        assert!(refusal.message.contains("only root may do that"), "{refusal:?}");
        let end = end.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_silent_connection_is_closed_but_a_client_that_has_asked_may_pause() {
    const FIRST: Duration = Duration::from_millis(50);
    let (silent, server) = UnixStream::pair().unwrap();
    let end = converse(&server, &echo, &Arc::default(), (FIRST, Rights::All)).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::WouldBlock, "{end}");
    drop(silent);
    let (mut client, server) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || converse(&server, &echo, &Arc::default(), (FIRST, Rights::All)));
    for _ in 0..2 {
        client.write_all(b"{\"request\":\"status\"}\n").unwrap();
        let mut answer = String::new();
        BufReader::new(&client).read_line(&mut answer).unwrap();
        assert!(answer.contains("no"), "{answer}");
        thread::sleep(2 * FIRST);
    }
    drop(client);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_queued_request_is_dropped_when_its_client_has_gone() {
    let never =
        |request: Request, _: Option<u32>, _: &mut dyn FnMut(u64, u64)| -> Handled { panic!("begun: {request:?}") };
    let (mut client, server) = UnixStream::pair().unwrap();
    let lines = b"{\"request\":\"pool_remove\",\"member\":1}\n{\"request\":\"status\"}\n";
    client.write_all(lines).unwrap();
    drop(client);
    converse(&server, &never, &Arc::default(), (FIRST_TIMEOUT, Rights::All)).unwrap();
}

#[test]
fn a_request_in_progress_finishes_when_its_client_has_gone() {
    let (mut client, server) = UnixStream::pair().unwrap();
    client
        .write_all(b"{\"request\":\"pool_remove\",\"member\":1}\n")
        .unwrap();
    let (client, is_done) = (Mutex::new(Some(client)), Arc::new(AtomicBool::new(false)));
    let done = Arc::clone(&is_done);
    let slow = move |_: Request, _: Option<u32>, progress: &mut dyn FnMut(u64, u64)| -> Handled {
        drop(client.lock().take());
        thread::sleep(PROGRESS_PERIOD);
        progress(1, 2);
        done.store(true, Ordering::Relaxed);
        Ok(Outcome::Removed)
    };
    assert!(
        converse(&server, &slow, &Arc::default(), (FIRST_TIMEOUT, Rights::All)).is_err(),
        "the answer reaches nobody"
    );
    assert!(is_done.load(Ordering::Relaxed));
}

#[test]
fn counts_are_decremented_after_a_panic() {
    let activity = Arc::new(Activity::default());
    let thread_activity = Arc::clone(&activity);
    let panicked = thread::spawn(move || {
        let _connection = Counted::new(&thread_activity, Thing::ConnectionOf(7));
        assert_eq!(thread_activity.counts.lock().connections, BTreeMap::from([(7, 1)]));
        panic!("planned panic");
    });
    assert!(panicked.join().is_err());
    assert_eq!(activity.counts.lock().connections, BTreeMap::new());
}

#[test]
fn progress_then_result_and_the_next_request() {
    let replies = talk(b"{\"request\":\"pool_drain\",\"member\":5}\n{\"request\":\"status\"}\n");
    let expected = [
        Reply::Progress {
            done_bytes: 1,
            total_bytes: 2,
        },
        Reply::Done(Outcome::Drained { bytes: 5 }),
        Reply::Failed(Refusal::new("no")),
    ];
    assert_eq!(replies, expected);
}

#[test]
fn garbage_is_answered_and_the_connection_stays_open() {
    let replies = talk(b"garbage\n{\"request\":\"status\"}\n");
    assert_eq!(replies.len(), 2);
    assert!(matches!(&replies[0], Reply::Failed(refusal) if refusal.message.contains("does not understand")));
}

#[test]
fn a_viewer_too_many_is_told_so() {
    let (handler, activity): (Arc<dyn Handler>, _) = (Arc::new(echo), Arc::new(Activity::default()));
    // Tests run as root, for whom a user's bound does not hold.
    let others: Vec<_> = (1..)
        .take(READERS_MAX)
        .map(|user| Counted::new(&activity, Thing::ConnectionOf(user)))
        .collect();
    let ask = || {
        let (mut client, server) = UnixStream::pair().unwrap();
        serve(server, &handler, &activity, Rights::Reading);
        // The server may have closed the connection already.
        let _ = client.write_all(b"{\"request\":\"status\"}\n");
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        answer
    };
    let answer = ask();
    says(&answer, &["8 viewers look at this pool already: end one"]);
    drop(others);
    assert!(ask().contains("\"no\""), "the places are free again");
}

#[test]
fn a_user_gets_half_of_the_places_and_root_gets_all() {
    let of = |connections: &[(u32, usize)], user| {
        let counts = Counts {
            connections: connections.iter().copied().collect(),
            requests: 0,
        };
        counts.refuse(user, Rights::Reading)
    };
    assert_eq!(of(&[(1000, 4), (1001, 4)], 1000), None);
    let refused = of(&[(1000, 5), (1001, 1)], 1000).unwrap();
    assert!(refused.contains("4 viewers of this user"), "{refused}");
    assert_eq!(of(&[(1000, 5), (1001, 1)], 1001), None);
    assert_eq!(of(&[(0, 8)], 0), None);
    assert!(of(&[(0, 9)], 0).unwrap().contains("8 viewers look"));
}

#[test]
fn a_line_that_comes_byte_by_byte_has_an_end() {
    const FIRST: Duration = Duration::from_millis(200);
    let (mut client, server) = UnixStream::pair().unwrap();
    let writer = thread::spawn(move || {
        for _ in 0..40 {
            if client.write_all(b" ").is_err() {
                return;
            }
            thread::sleep(FIRST / 10);
        }
    });
    let begun = Instant::now();
    let end = converse(&server, &echo, &Arc::default(), (FIRST, Rights::Reading)).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::WouldBlock, "{end}");
    assert!(begun.elapsed() < 3 * FIRST, "{:?}", begun.elapsed());
    drop(server);
    writer.join().unwrap();
}

#[test]
fn a_reader_gets_four_answers_a_second_and_root_gets_all() {
    const REQUESTS: u32 = 4;
    for (rights, least, most) in [
        (Rights::Reading, REQUESTS * READER_PERIOD, 20 * READER_PERIOD),
        (Rights::All, Duration::ZERO, READER_PERIOD),
    ] {
        let begun = Instant::now();
        let lines = b"{\"request\":\"live\",\"since_ms\":0}\n".repeat(REQUESTS as usize);
        let (replies, end) = talk_as(rights, &lines);
        assert_eq!(replies.len(), REQUESTS as usize);
        let taken = begun.elapsed();
        assert!((least..most).contains(&taken), "{rights:?}: {taken:?}");
        end.unwrap();
    }
}

#[test]
fn requests_of_a_reader_who_has_gone_are_dropped_at_once() {
    for (rights, ends_well) in [(Rights::Reading, false), (Rights::All, true)] {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(&b"{\"request\":\"status\"}\n".repeat(50)).unwrap();
        drop(client);
        let begun = Instant::now();
        let end = converse(&server, &echo, &Arc::default(), (FIRST_TIMEOUT, rights));
        assert_eq!(end.is_ok(), ends_well, "{rights:?}: {end:?}");
        assert!(begun.elapsed() < 4 * READER_PERIOD, "{:?}", begun.elapsed());
    }
}

/// A thread that tells progress holds locks of the pool, and a stopped shell job reads nothing.
#[test]
fn progress_waits_for_no_client() {
    let (client, server) = UnixStream::pair().unwrap();
    server.set_write_timeout(Some(WRITE_TIMEOUT)).unwrap();
    let line = Reply::Progress {
        done_bytes: 1,
        total_bytes: 1 << 40,
    };
    let begun = Instant::now();
    let lost = (0..10_000).filter(|_| send_if_taken(&server, &line).is_err()).count();
    assert!(begun.elapsed() < WRITE_TIMEOUT, "{:?}", begun.elapsed());
    drop(server);
    let lines = BufReader::new(&client).lines().map(|line| line.unwrap());
    let whole = lines.filter(|line| serde_json::from_str::<Reply>(line).is_ok()).count();
    assert_eq!(whole + lost, 10_000, "what was sent is whole");
    assert!(lost > 0);
}
