//! `web`: its page in a browser, its metrics, and who may read them.

use super::harness::*;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

/// A running `homenode web`.
struct Web {
    child: Child,
    /// Where the page is, with the token if there is one.
    address: String,
}

impl Web {
    fn start(arguments: &[&str]) -> Self {
        let mut command = homenode(["web"]);
        command.args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.split(" (ends").next().unwrap().split(" with ").next().unwrap();
        Self {
            child,
            address: address.to_owned(),
        }
    }

    fn on_loopback() -> Self {
        Self::start(&["--listen", &free_port()])
    }

    /// Port and token.
    fn parts(&self) -> (&str, &str) {
        let (port, token) = self.address.split_once("#token=").unwrap();
        (port.trim_end_matches('/'), token)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // Ended already, perhaps.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}

fn curl(arguments: &[&str]) -> Output {
    let output = Command::new("curl").args(["-s", "-m", "20"]).args(arguments).output();
    output.unwrap()
}

fn text_of(arguments: &[&str]) -> String {
    let output = curl(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", describe(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn code_of(arguments: &[&str]) -> String {
    text_of(&[&["-o", "/dev/null", "-w", "%{http_code}"], arguments].concat())
}

/// A browser with one page, told what to do by its DevTools protocol.
struct Browser {
    child: Child,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    session: String,
    last: u64,
}

impl Browser {
    fn open(scratch: &Scratch, url: &str) -> Self {
        let mut child = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-port=0",
                "--window-size=390,844",
            ])
            .arg(format!("--user-data-dir={}", scratch.path().join("browser").display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let endpoint = endpoint(child.stderr.take().unwrap());
        let (socket, _) = tungstenite::connect(endpoint).unwrap();
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        }
        let mut browser = Self {
            child,
            socket,
            session: String::new(),
            last: 0,
        };
        let made = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": made["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        browser.call("Page.enable", &json!({}));
        browser.call("Page.navigate", &json!({"url": url}));
        browser
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap() else {
                continue;
            };
            let mut answer: Value = serde_json::from_str(&text).unwrap();
            if answer["id"] == self.last {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].take();
            }
        }
    }

    /// The value of an expression of JavaScript.
    fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut told = self.call("Runtime.evaluate", &parameters);
        assert_eq!(told["exceptionDetails"], Value::Null, "{expression}");
        told["result"]["value"].take()
    }

    fn text(&mut self) -> String {
        self.value("document.body?.innerText ?? ''")
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    fn wait_for(&mut self, what: &str, is_done: impl Fn(&str) -> bool) {
        self.wait(what, |browser| is_done(&browser.text()));
    }

    /// Waits until an expression of JavaScript is true.
    fn wait_until(&mut self, what: &str, expression: &str) {
        self.wait(what, |browser| browser.value(expression) == json!(true));
    }

    fn wait(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while !is_done(self) {
            let is_late = std::time::Instant::now() >= end;
            assert!(!is_late, "waited too long until {what}:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn updates(&mut self) -> u64 {
        let updates = self.value("document.body?.dataset.updates ?? '0'");
        updates.as_str().unwrap().parse().unwrap()
    }

    /// Bytes of JavaScript's heap, and nodes of the document, after a collection. The least of a few looks: the page goes on, and what
    /// it threw away since the collection counts as well.
    fn memory(&mut self) -> (f64, f64) {
        let looks = (0..5).map(|_| {
            self.call("HeapProfiler.collectGarbage", &json!({}));
            let bytes = self.call("Runtime.getHeapUsage", &json!({}))["usedSize"].as_f64();
            let nodes = self.call("Memory.getDOMCounters", &json!({}))["nodes"].as_f64();
            (bytes.unwrap(), nodes.unwrap())
        });
        looks
            .reduce(|least, look| (least.0.min(look.0), least.1.min(look.1)))
            .unwrap()
    }

    /// Lets the page's clock go on by an hour, as fast as its requests are answered.
    fn hurry(&mut self) {
        let policy = json!({"policy": "pauseIfNetworkFetchesPending", "budget": 3_600_000});
        self.call("Emulation.setVirtualTimePolicy", &policy);
    }

    fn wait_for_updates(&mut self, updates: u64) {
        let end = std::time::Instant::now() + Duration::from_secs(100);
        while self.updates() < updates {
            assert!(
                std::time::Instant::now() < end,
                "{} updates of {updates}",
                self.updates()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a browser listens, which it tells on standard error.
fn endpoint(errors: ChildStderr) -> String {
    let mut lines = BufReader::new(errors).lines();
    let endpoint = lines.by_ref().find_map(|line| {
        let line = line.unwrap();
        line.strip_prefix("DevTools listening on ").map(ToOwned::to_owned)
    });
    // What it says later is for nobody; a full pipe would stop it.
    std::thread::spawn(move || lines.for_each(drop));
    endpoint.expect("the browser says where it listens")
}

#[test]
fn a_browser_shows_pools_live_and_does_not_grow() {
    need_mounts!();
    let scratch = Scratch::new("web");
    let (one, other) = (scratch.dir("one"), scratch.dir("other"));
    up(&one);
    let mut web = Web::on_loopback();
    let name = |dir: &Path| dir.to_str().unwrap().to_owned();
    // Others may have pools here as well.
    let mut browser = Browser::open(&scratch, &format!("{}&pool={}", web.address, name(&one)));
    browser.wait_for("the pool is shown", |text| {
        text.contains(&name(&one)) && text.contains("node 0")
    });
    assert!(browser.text().contains("health:"), "{}", browser.text());
    // The text is there before it is painted.
    let paint = "new Promise(found => new PerformanceObserver(list =>
        list.getEntriesByName('first-contentful-paint').forEach(paint => found(paint.startTime)),
    ).observe({type: 'paint', buffered: true}))";
    let paint = browser.value(paint).as_f64().unwrap();
    println!("first paint after {paint} ms");
    // 300 ms where nothing else runs; here tests do.
    assert!(paint < 3000.0, "first paint after {paint} ms");
    up(&other);
    let button = |dir: &Path| {
        let name = name(dir);
        format!("[...document.querySelectorAll('nav button')].find(one => one.textContent === {name:?})")
    };
    // A look from while it was coming up may be on the page at first.
    browser.wait_until("the new pool can be chosen", &format!("!!{}", button(&other)));
    browser.value(&format!("{}.click()", button(&other)));
    fs::write(other.join("file"), vec![1; 3 << 20]).unwrap();
    browser.wait_for("its bytes are shown", |text| text.contains("3.00 MiB"));
    down(&other);
    browser.wait_for("the pool that went is gone", |text| !text.contains(&name(&other)));
    // That of another test may be, and be silent.
    let chosen = browser.value("document.querySelectorAll('nav button[aria-pressed=true]').length");
    assert_eq!(chosen, json!(1), "another one is chosen");
    browser.wait_until("the first one can be chosen", &format!("!!{}", button(&one)));
    browser.value(&format!("{}.click()", button(&one)));
    browser.wait_for("the first one is shown again", |text| text.contains("node 0"));
    // At 390 pixels nothing makes the page wider than the screen.
    assert_eq!(
        browser.value("document.documentElement.scrollWidth <= innerWidth"),
        json!(true)
    );
    let unnamed = "[...document.querySelectorAll('button, svg')].filter(one => !one.textContent.trim()).length";
    assert_eq!(browser.value(unnamed), json!(0), "buttons and pictures have names");
    browser.value("document.getElementById('ask-plan').click()");
    browser.wait_for("the plan is shown", |text| {
        !text.contains("looking …") && text.contains("doctor find")
    });
    let answer = browser.value("document.getElementById('look').innerText");
    assert!(!answer.as_str().unwrap().is_empty(), "{answer}");
    // In one go, as answers of the server come in between otherwise. First: a pool whose machine's clock was set back has no point that is
    // as late as those of the others. Then a new one. Then silent pools: they hold no others back, and lose no points, as the answer in
    // which they speak again was asked for without theirs.
    let told = "(own => {
        const told = [], only = pools => show({health: 'ok', dead: [], affinity_changes: 0, pools});
        const clock = (end, nth) => ({...own, id: 'clock' + nth, name: 'clock' + nth, history: [[end, 0, 0, 0, 0]]});
        only([9e12, 5000].map(clock)), told.push(since());
        only([...shown.pools, {...own, id: 'new', history: []}]), told.push(since());
        only(shown.pools.map((pool, nth) => ({...pool, is_silent: nth > 0}))), told.push(since());
        const again = shown.pools.map(pool => ({...pool, is_silent: false, history: [[6000, 0, 0, 0, 0]]}));
        show({...shown, pools: again}, 9e12), told.push(histories.get('clock1').at(-1)[0]);
        return told;
    })";
    let own = format!("shown.pools.find(pool => pool.name === {:?})", name(&one));
    assert_eq!(
        browser.value(&format!("{told}({own})")),
        json!([5000, 0, 9_000_000_000_000_u64, 5000])
    );
    let before = browser.updates();
    browser.hurry();
    // Ten minutes of history are what it keeps.
    let mut memory_after = |updates| {
        browser.wait_for_updates(before + updates);
        // On a busy machine a pool may be silent for a moment, and little is shown then.
        browser.wait_for("the pool is shown", |text| text.contains("node 0"));
        browser.memory()
    };
    let (bytes, nodes) = memory_after(650);
    // Pools of other tests come and go, and take some too: what has grown is found each time.
    let has_grown = |now: &(f64, f64)| now.0 >= 1.2 * bytes + 300_000.0 || now.1 >= 1.2 * nodes + 100.0;
    let later = (1650..2150).step_by(50).map(memory_after);
    let grown: Vec<_> = later.take_while(has_grown).collect();
    assert!(grown.len() < 10, "{bytes} B in {nodes} nodes, then {grown:?}");
    signal(web.pid(), Signal::TERM);
    assert!(web.child.wait().unwrap().success());
    browser.value("ask()");
    browser.wait_for("the page says that nobody answers", |text| {
        text.contains("homenode web does not answer")
    });
    drop(browser);
    down(&one);
}

#[test]
fn the_page_and_metrics_need_the_token() {
    let (_scratch, dir) = need_pool!("web-token");
    let web = Web::on_loopback();
    let (port, token) = web.parts();
    for page in ["live", "metrics", "doctor", "plan", "other", "live?token=x"] {
        assert_eq!(code_of(&[&format!("{port}/{page}")]), "401", "{page}");
    }
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(code_of(&["-H", &bearer, &format!("{port}/")]), "200");
    assert_eq!(code_of(&["-H", &bearer, &format!("{port}/other")]), "404");
    assert_eq!(code_of(&["-H", &bearer, "-X", "POST", &format!("{port}/")]), "405");
    let metrics = text_of(&["-H", &bearer, &format!("{port}/metrics")]);
    let of_pool = format!("homenode_up{{pool=\"{}\"}} 1", dir.display());
    assert!(metrics.lines().any(|line| line == of_pool), "{metrics}");
    for alert in ["failed", "member_problems"] {
        let line = format!("homenode_{alert}{{pool=\"{}\"}} 0", dir.display());
        assert!(metrics.lines().any(|told| told == line), "{line} in {metrics}");
    }
    // The judge of what others load.
    let check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut check = check.unwrap();
    check.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(complaints, "");
    let alerts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus-alerts.yml");
    succeed(Command::new("promtool").args(["check", "rules", "--lint-fatal", alerts]));
    let accept = "Accept: application/openmetrics-text; version=1.0.0";
    let later = text_of(&["-H", &bearer, "-H", accept, &format!("{port}/metrics")]);
    assert!(later.ends_with("# EOF\n") && !metrics.contains("# EOF"), "{later}");
    drop(web);
    down(&dir);
}

#[test]
fn a_stopped_server_is_told_and_the_next_figures_are_new() {
    let (_scratch, dir) = need_pool!("web-stopped");
    let web = Web::on_loopback();
    let (port, token) = web.parts();
    let bearer = format!("Authorization: Bearer {token}");
    let metric = |name: &str| {
        let metrics = text_of(&["-m", "3", "-H", &bearer, &format!("{port}/metrics")]);
        let begin = format!("homenode_{name}{{pool=\"{}\"", dir.display());
        let line = metrics.lines().find(|line| line.starts_with(&begin));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
    };
    wait_until("the pool is told", || metric("up") == Some(1.0));
    let before = metric("used_bytes").unwrap();
    let stopped = Stopped::new(server_pid(&dir).unwrap());
    // `metric` itself fails when an answer takes longer than three seconds.
    wait_until("the stop is told", || metric("up") == Some(0.0));
    // Answers that were owed would be old ones now.
    std::thread::sleep(Duration::from_secs(6));
    drop(stopped);
    wait_until("the server is back", || metric("up") == Some(1.0));
    fs::write(dir.join("file"), vec![1; 8 << 20]).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(metric("used_bytes").unwrap() >= before + 8e6, "the figures are old");
    drop(web);
    down(&dir);
}

#[test]
fn the_socket_is_roots_and_the_file_of_a_token_is_private() {
    need_mounts!();
    let scratch = Scratch::new("web-socket");
    let socket = scratch.path().join("socket");
    let listen = format!("unix:{}", socket.display());
    let web = Web::start(&["--listen", &listen]);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let path = socket.to_str().unwrap();
    assert_eq!(code_of(&["--unix-socket", path, "http://pools/live"]), "200");
    refused(
        &mut homenode(["web", "--listen", &listen]),
        &["another process serves there"],
    );
    signal(web.pid(), Signal::INT);
    wait_until("it ends and removes its socket", || !socket.exists());
    drop(web);
    let file = scratch.path().join("token");
    fs::write(&file, "0123456789abcdef").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let token_file = file.to_str().unwrap();
    let port = free_port();
    let arguments = ["web", "--listen", &port, "--token-file", token_file];
    refused(&mut homenode(arguments), &["chmod 600"]);
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let web = Web::start(&arguments[1..]);
    assert!(!web.address.contains("0123456789abcdef"), "{}", web.address);
    assert_eq!(
        code_of(&["-H", "Authorization: Bearer 0123456789abcdef", &web.address]),
        "200"
    );
    let taken = port.clone();
    refused(&mut homenode(["web", "--listen", &taken]), &["name another one"]);
    drop(web);
    refused(
        &mut homenode(["web", "--listen", "0.0.0.0:7099"]),
        &["--token-file", "other machines"],
    );
    let message = fail(2, &mut homenode(["web", "--listen", "nowhere"]));
    assert!(message.contains("127.0.0.1:PORT"), "{message}");
}

#[test]
fn ten_thousand_connections_are_bounded() {
    need_mounts!();
    let web = Web::on_loopback();
    let (port, token) = web.parts();
    let address = port.strip_prefix("http://").unwrap();
    let threads = || fs::read_dir(format!("/proc/{}/task", web.child.id())).unwrap().count();
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", web.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = (threads(), memory());
    // The last 500 stay open.
    let mut open = VecDeque::new();
    for round in 0..10_000 {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(b"GET /live HTTP/1.1\r\n");
            open.push_back(stream);
            if open.len() > 500 {
                open.pop_front();
            }
        }
        if round % 1000 == 0 {
            assert!(threads() < before.0 + 10, "{} threads", threads());
        }
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", web.child.id())).unwrap().count();
    assert!(descriptors < 256 + 40, "{descriptors} descriptors");
    let bearer = format!("Authorization: Bearer {token}");
    // They wait for nobody, and keep nobody waiting.
    assert_eq!(code_of(&["-m", "2", "-H", &bearer, &format!("{port}/live")]), "200");
    drop(open);
    assert!(memory() < before.1 + 32_000, "{} kB, then {} kB", before.1, memory());
}
