use super::conversation::{HEADER_BYTES_MAX, PATIENCE};
use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

/// Tells the path, and panics on `/bug`. Who asks for `/known` keeps the place.
struct Paths;

impl Pages for Paths {
    fn at_once(&self, asked: &Asked<'_>) -> Option<Page> {
        let text = format!("{} {}", asked.path, asked.field("a").unwrap_or("none"));
        (!["/known", "/bug"].contains(&asked.path)).then(|| Page::new("text/plain", text))
    }

    fn get(&self, asked: &Asked<'_>) -> Page {
        assert_ne!(asked.path, "/bug");
        Page::new("text/plain", format!("{} none", asked.path))
    }
}

fn serve(address: &Address) -> Result<Server> {
    Server::start(address, 0o600, "pages", Arc::new(Paths))
}

/// A server at a free port of loopback.
fn serve_on_loopback() -> (Server, std::net::SocketAddr) {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    (serve(&Address::Tcp(free)).unwrap(), free)
}

fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    // It may be reset behind an answer to a request that was not read whole.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn close(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").into_bytes()
}

#[test]
fn pages_are_read_over_sockets_and_ports_until_the_server_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    // As a killed server leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    for mode in [0o666, 0o600] {
        let _server = Server::start(&Address::Unix(path.clone()), mode, "pages", Arc::new(Paths)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
    }
    let server = serve(&Address::Unix(path.clone())).unwrap();
    let answer = ask(UnixStream::connect(&path).unwrap(), &close("GET", "/x?b=1&a=2"));
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("/x 2"),
        "{answer}"
    );
    let second = serve(&Address::Unix(path.clone())).unwrap_err().to_string();
    assert!(second.contains("another process serves there"), "{second}");
    fs::remove_file(&path).unwrap();
    let second = serve(&Address::Unix(path.clone())).unwrap();
    drop(server);
    assert!(path.exists(), "the socket of another server was removed");
    drop(second);
    assert!(!path.exists());
    let (server, address) = serve_on_loopback();
    assert!(ask(TcpStream::connect(address).unwrap(), &close("GET", "/")).ends_with("/ none"));
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn wrong_requests_are_refused_and_bugs_cost_one_request() {
    let (_server, address) = serve_on_loopback();
    let ask = |request: &[u8]| ask(TcpStream::connect(address).unwrap(), request);
    assert!(ask(&close("POST", "/")).starts_with("HTTP/1.1 405 "));
    assert!(ask(&close("DELETE", "/")).starts_with("HTTP/1.1 405 "));
    assert!(ask(b"\x01\x02\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * HEADER_BYTES_MAX));
    assert!(ask(long.as_bytes()).starts_with("HTTP/1.1 431 "));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(300));
    assert!(ask(many.as_bytes()).starts_with("HTTP/1.1 431 "));
    assert!(ask(&close("GET", "/bug")).starts_with("HTTP/1.1 500 "));
    assert!(ask(&close("GET", "/")).ends_with("/ none"));
    assert!(!ask(&close("HEAD", "/")).contains("none"));
}

/// `nc -N` is such a client.
#[test]
fn clients_that_send_nothing_more_are_answered() {
    let (_server, address) = serve_on_loopback();
    let chunked = b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for request in [
        &chunked[..],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(PATIENCE / 2)).unwrap();
        let mut answer = String::new();
        // Its end: the connection is not kept for more requests.
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("/ none"), "{answer}");
    }
}

#[test]
fn any_bytes_leave_a_server_that_answers() {
    let (_server, address) = serve_on_loopback();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let mut bytes = close("GET", "/");
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, random.u8(..)),
            }
        }
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    assert!(ask(TcpStream::connect(address).unwrap(), &close("GET", "/")).ends_with("/ none"));
}

/// A client that keeps its connection: the answer to one request.
fn ask_again(stream: &mut TcpStream, path: &str) -> io::Result<String> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
    let mut answer = vec![0; 4096];
    let count = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
}

#[test]
fn silent_and_unknown_clients_give_their_places_to_others() {
    let (_server, address) = serve_on_loopback();
    let mut known = TcpStream::connect(address).unwrap();
    assert!(ask_again(&mut known, "/known").unwrap().contains("/known none"));
    let others: Vec<_> = (0..3 * CONNECTIONS_MAX)
        .map(|nth| {
            let mut stream = TcpStream::connect(address).unwrap();
            // Half of them are silent.
            if nth % 2 == 0 {
                ask_again(&mut stream, "/").unwrap();
            }
            stream
        })
        .collect();
    let begun = Instant::now();
    assert!(ask(TcpStream::connect(address).unwrap(), &close("GET", "/")).ends_with("/ none"));
    assert!(begun.elapsed() < PATIENCE / 4, "{:?}", begun.elapsed());
    // The oldest but one: it has kept its place.
    assert!(ask_again(&mut known, "/known").unwrap().contains("/known none"));
    let mut oldest = &others[0];
    oldest.set_read_timeout(Some(PATIENCE / 4)).unwrap();
    let is_gone = |read: io::Result<usize>| {
        read.map_or_else(
            |error| error.kind() == io::ErrorKind::ConnectionReset,
            |count| count == 0,
        )
    };
    assert!(is_gone(oldest.read(&mut [0])), "it has kept its place");
}

/// Each always has a request under way, and reads none of its answers.
#[test]
fn clients_that_pipeline_and_do_not_read_keep_nobody_away() {
    let (_server, address) = serve_on_loopback();
    let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    let hostile: Vec<_> = (0..2 * CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_nonblocking(true).unwrap();
            // As much as the kernel takes.
            let _ = stream.write(&requests);
            stream
        })
        .collect();
    let begun = Instant::now();
    assert!(ask(TcpStream::connect(address).unwrap(), &close("GET", "/known")).ends_with("/known none"));
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    drop(hostile);
}

#[test]
fn connections_that_have_ended_leave_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut places, pages): (_, Arc<dyn Pages>) = (Places::default(), Arc::new(Paths));
        for _ in 0..20 {
            let (client, server) = tokio::net::UnixStream::pair().unwrap();
            drop(client);
            places.take(Box::new(server), &pages).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(places.taken.len() < 10, "{} places", places.taken.len());
        assert!(places.conversations.len() < 10, "{} tasks", places.conversations.len());
    });
}

#[test]
fn where_all_are_known_others_wait_for_their_places() {
    let (_server, address) = serve_on_loopback();
    let known: Vec<_> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            assert!(ask_again(&mut stream, "/known").unwrap().contains("/known none"));
            stream
        })
        .collect();
    let begun = Instant::now();
    // The first ones are let go for it, as they send nothing more.
    assert!(ask(TcpStream::connect(address).unwrap(), &close("GET", "/")).ends_with("/ none"));
    assert!(begun.elapsed() < 4 * PATIENCE, "{:?}", begun.elapsed());
    // No earlier: without a bound it would be answered at once.
    assert!(begun.elapsed() > PATIENCE / 2, "{:?}", begun.elapsed());
    drop(known);
}

#[test]
fn places_that_cannot_be_served_come_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let told = |address: &Address| serve(address).unwrap_err().to_string();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let long = directory.path().join("x".repeat(120));
    let table = [
        (file.clone(), "the file is no socket: remove it"),
        (directory.path().join("none/socket"), "create its directory first"),
        (file.join("socket"), "create its directory first"),
        (long, "name a shorter path"),
    ];
    for (path, remedy) in table {
        let told = told(&Address::Unix(path));
        assert!(told.contains(remedy), "{told}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let told = told(&Address::Tcp(taken.local_addr().unwrap()));
    assert!(told.contains("name another one"), "{told}");
}
