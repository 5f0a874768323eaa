//! Any bytes as what a client of `homenode web` sends. Each is answered or let go: no panic, no place that is kept, no page without a GET or HEAD.
#![no_main]

#[path = "../../crates/cli/src/http/conversation.rs"]
mod conversation;

use conversation::{Asked, Page, Pages, converse};
use libfuzzer_sys::fuzz_target;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Duration, timeout};

/// More than any answer to an input has.
const BYTES_MAX: usize = 1 << 24;

/// Longest conversation with a client that waits for nothing.
const PLACE_TIME: Duration = Duration::from_secs(1);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let built = Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build();
    built.expect("a runtime without sockets can be made")
});

/// Counts what it is asked for, and answers with it.
#[derive(Default)]
struct Counted(AtomicUsize);

impl Pages for Counted {
    fn at_once(&self, asked: &Asked<'_>) -> Option<Page> {
        (asked.path.len() % 2 == 0).then(|| self.get(asked))
    }

    fn get(&self, asked: &Asked<'_>) -> Page {
        self.0.fetch_add(1, Ordering::Relaxed);
        assert!(
            !asked
                .path
                .contains(|letter: char| letter.is_ascii_control() || letter == '?')
        );
        let field = asked.field("since").unwrap_or_default();
        assert!(!field.contains('&'));
        let known = asked.header("authorization").is_some();
        Page::new("text/plain", format!("{}\t{field}\t{known}", asked.path))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let pages = Arc::new(Counted::default());
    let answer = RUNTIME.block_on(async {
        let (mut client, server) = duplex(BYTES_MAX);
        client.write_all(bytes).await.expect("it holds all of it");
        client.shutdown().await.expect("nobody has closed it");
        let asked: Arc<dyn Pages> = Arc::clone(&pages) as _;
        timeout(PLACE_TIME, converse(Box::new(server), asked, Arc::default()))
            .await
            .expect("a client that has closed its half keeps no place");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("memory is always read");
        answer
    });
    let count = |text: &[u8], word: &[u8]| text.windows(word.len()).filter(|part| *part == word).count();
    // Bodies of pages have no space.
    let told = count(&answer, b"HTTP/1.1 200 ") + count(&answer, b"HTTP/1.0 200 ");
    let asked = pages.0.load(Ordering::Relaxed);
    assert_eq!(told, asked);
    assert!(asked <= count(bytes, b"GET ") + count(bytes, b"HEAD "));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
});
