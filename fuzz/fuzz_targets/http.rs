//! Any bytes as what a client of `homenode web` sends: answered, or let go without an answer, never a panic or a page for something that was not asked for.
#![no_main]
#![allow(dead_code, reason = "the file is the server's, which uses all of it")]

#[path = "../../crates/cli/src/http/conversation.rs"]
mod conversation;

use conversation::{Asked, Page, Pages, converse};
use libfuzzer_sys::fuzz_target;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};

/// More than any answer to an input has.
const BYTES_MAX: usize = 1 << 24;

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
        Page::new("text/plain", format!("{} {field} {known}", asked.path))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let pages = Arc::new(Counted::default());
    let answer = RUNTIME.block_on(async {
        let (mut client, server) = duplex(BYTES_MAX);
        client.write_all(bytes).await.expect("it holds all of it");
        client.shutdown().await.expect("nobody has closed it");
        let asked: Arc<dyn Pages> = Arc::clone(&pages) as _;
        converse(Box::new(server), asked).await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("memory is always read");
        answer
    });
    // Each answer begins a line; bodies of pages have none of their own.
    let told = |status: &[u8]| answer.windows(status.len()).filter(|part| *part == status).count();
    assert_eq!(
        told(b"HTTP/1.1 200 ") + told(b"HTTP/1.0 200 "),
        pages.0.load(Ordering::Relaxed)
    );
    assert_eq!(told(b" 500 "), 0);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
});
