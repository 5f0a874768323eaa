use super::*;
use crate::cost::median_cost;
use crate::live::{Pool, Pools};
use crate::report::{KindTimes, LiveReport, Sample, Span};
use hyper::header::HeaderMap;
use std::time::Duration;

fn pages(token: Option<&str>) -> OfPools {
    OfPools {
        watch: Watch::start().unwrap(),
        token: token.map(ToOwned::to_owned),
        looking: Mutex::default(),
    }
}

fn get(pages: &OfPools, path: &str, query: &str, headers: &[(&'static str, &str)]) -> Page {
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        all.insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let asked = Asked {
        path,
        query,
        headers: &all,
    };
    pages.at_once(&asked).unwrap_or_else(|| pages.get(&asked))
}

#[test]
fn nothing_is_told_without_the_token() {
    let token = "0123456789abcdef";
    let pages = pages(Some(token));
    for path in ["/live", "/metrics", "/doctor", "/plan", "/none"] {
        let wrong = [
            ("authorization", "Bearer 0123456789abcdeX"),
            ("cookie", "token=0123456789abcdef"),
        ];
        for headers in [&wrong[..0], &wrong[..1], &wrong[1..]] {
            let told = get(&pages, path, "token=0123456789abcdef", headers);
            assert_eq!(told.status, StatusCode::UNAUTHORIZED, "{path}");
        }
    }
    let right = [("authorization", "Bearer 0123456789abcdef")];
    assert_eq!(get(&pages, "/live", "", &right).status, StatusCode::OK);
    // Schemes have no case.
    let small = [("authorization", "bearer 0123456789abcdef")];
    assert_eq!(get(&pages, "/live", "", &small).status, StatusCode::OK);
    assert_eq!(get(&pages, "/none", "", &right).status, StatusCode::NOT_FOUND);
    // The page itself is the same for all.
    let page = get(&pages, "/", "", &[]);
    assert!(page.status == StatusCode::OK && !String::from_utf8_lossy(&page.body).contains(token));
}

#[test]
fn the_page_stands_alone_and_is_small() {
    let page = get(&pages(None), "/", "", &[]);
    let text = std::str::from_utf8(&page.body).unwrap();
    assert!(text.len() < 200_000 && !text.contains("NONCE"), "{}", text.len());
    let foreign = text
        .match_indices("http")
        .filter(|(at, _)| !text[*at..].starts_with("http://www.w3.org/2000/svg"));
    assert_eq!(foreign.count(), 0, "the page names another host");
    assert!(!text.contains("innerHTML"), "names of mounts are text");
}

#[test]
fn tokens_of_files_are_private_and_long() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let of = |text: &str, mode| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        token_in(&path).map_err(|failure| failure.to_string())
    };
    assert_eq!(of("0123456789abcdef\n", 0o600).unwrap(), "0123456789abcdef");
    assert!(of("0123456789abcdef", 0o640).unwrap_err().contains("chmod 600"));
    assert!(of("short", 0o600).unwrap_err().contains("16 characters"));
    assert!(of("0123456789abcdef;x", 0o600).unwrap_err().contains("letters"));
    assert!(
        token_in(directory.path())
            .unwrap_err()
            .to_string()
            .contains("no regular file")
    );
    assert!(
        token_in(Path::new("/none/token"))
            .unwrap_err()
            .to_string()
            .contains("No such file")
    );
}

/// A pool of so many nodes, with a flow between each two of them and ten minutes of history.
fn large(nodes: u16) -> Pools {
    let flows: Vec<_> = (0..nodes)
        .flat_map(|from| (0..nodes).map(move |home| (from, home)))
        .collect();
    let flows = |scale: u64| {
        let flow = |&(from, home): &(u16, u16)| homenode::Flow {
            from: homenode::NodeId(from),
            home: homenode::NodeId(home),
            bytes: scale * u64::from(from + home + 1),
            operations: u64::from(from),
        };
        Some(flows.iter().map(flow).collect::<Vec<_>>())
    };
    let mut report = crate::control::protocol::StatusReport {
        directory: "/mnt/\"a\"\n".to_owned(),
        mounted: true,
        flows: flows(1 << 30),
        server_cpu_ns: 1_500_000_000,
        ..Default::default()
    };
    report.pool.nodes = (0..nodes)
        .map(|node| homenode::NodeStatus {
            node: homenode::NodeId(node),
            state: homenode::MemberState::Candidate,
            capacity_bytes: 1 << 30,
            populated_bytes: 0,
            used_bytes: 1 << 20,
            spilled_bytes: 0,
        })
        .collect();
    report.fuse.by_operation = [("Read".to_owned(), 7), ("Write".to_owned(), 8)].into();
    report.fuse.times = vec![KindTimes {
        kind: "read".to_owned(),
        sum_ns: 4000,
        spans: vec![
            Span {
                below_ns: Some(256),
                requests: 3,
            },
            Span {
                below_ns: Some(1024),
                requests: 4,
            },
        ],
    }];
    let sample = |second: u64| Sample {
        at_ms: second * 1000,
        span_ms: 1000,
        flows: flows(second),
        requests: second,
        ..Sample::default()
    };
    let pool = Pool {
        device: crate::mountinfo::Device { major: 0, minor: 40 },
        name: "/mnt/\"a\"".to_owned(),
        report: Some(Arc::new(report)),
        samples: (1..=600).map(sample).map(Arc::new).collect(),
        silent: None,
    };
    Pools {
        pools: vec![pool],
        dead: vec!["/mnt/dead".to_owned()],
        affinity_changes: 3,
    }
}

#[test]
fn metrics_have_units_help_and_labels() {
    let text = metrics::text(large(2));
    for line in [
        "# HELP homenode_flow_bytes Bytes read and written, by node of the CPUs and home of the bytes; none where that is not seen",
        "# TYPE homenode_flow_bytes counter",
        "# UNIT homenode_flow_bytes bytes",
        "homenode_flow_bytes_total{pool=\"/mnt/\\\"a\\\"\",from=\"1\",home=\"0\",place=\"remote\"} 2147483648",
        "homenode_up{pool=\"/mnt/\\\"a\\\"\"} 1",
        "homenode_up{pool=\"/mnt/dead\"} 0",
        "homenode_requests_total{pool=\"/mnt/\\\"a\\\"\",operation=\"Read\"} 7",
        "homenode_node_used_bytes{pool=\"/mnt/\\\"a\\\"\",node=\"1\"} 1048576",
        "homenode_server_cpu_seconds_total{pool=\"/mnt/\\\"a\\\"\"} 1.5",
        "# TYPE homenode_request_seconds histogram",
        "homenode_request_seconds_sum{pool=\"/mnt/\\\"a\\\"\",kind=\"read\"} 0.000004",
        "homenode_request_seconds_bucket{le=\"5.12e-7\",pool=\"/mnt/\\\"a\\\"\",kind=\"read\"} 3",
        "homenode_request_seconds_bucket{le=\"+Inf\",pool=\"/mnt/\\\"a\\\"\",kind=\"read\"} 7",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// A pool that was unmounted from under open files, and another one on its directory.
#[test]
fn pools_of_one_name_are_told_apart() {
    let mut pools = large(2);
    let mut detached = pools.pools[0].clone();
    detached.device.minor = 39;
    Arc::make_mut(detached.report.as_mut().unwrap()).mounted = false;
    pools.pools.insert(0, detached);
    let told = serde_json::to_value(live::Live::of(&pools, 0)).unwrap();
    let told = told["pools"].as_array().unwrap();
    assert_eq!(
        (&told[0]["id"], &told[0]["is_mounted"]),
        (&"0-39-0".into(), &false.into())
    );
    assert_eq!(
        (&told[1]["id"], &told[1]["is_mounted"]),
        (&"0-40-0".into(), &true.into())
    );
    // Prometheus takes no two series with the same labels.
    pools.dead.push(pools.pools[0].name.clone());
    let text = metrics::text(pools);
    let series = text
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, _)| series);
    let series: Vec<&str> = series.filter(|series| !series.starts_with('#')).collect();
    let unique: std::collections::BTreeSet<&&str> = series.iter().collect();
    assert_eq!(unique.len(), series.len(), "{text}");
    assert!(text.contains("homenode_up{pool=\"/mnt/\\\"a\\\"\"} 1\n"), "{text}");
}

#[test]
fn the_page_gets_the_history_once_and_then_what_is_new() {
    let pools = large(8);
    let of = |since_ms| serde_json::to_value(live::Live::of(&pools, since_ms)).unwrap();
    let all = of(0);
    let history = all["pools"][0]["history"].as_array().unwrap();
    // Eight nodes: from 0 to 0 is one, and so on.
    let sum: u64 = (0..8).flat_map(|from| (0..8).map(move |home| from + home + 1)).sum();
    let local: u64 = (0..8).map(|node| 2 * node + 1).sum();
    assert_eq!(history.len(), 600);
    assert_eq!(all["affinity_changes"], 3);
    assert_eq!(
        history[599],
        serde_json::json!([600_000, 600 * sum, 600 * (sum - local), 600, 0])
    );
    assert_eq!(of(598_000)["pools"][0]["history"].as_array().unwrap().len(), 2);
    let text = serde_json::to_string(&of(598_000)).unwrap();
    assert!(text.len() < 10_000, "{}", text.len());
}

#[test]
fn alerts_and_the_dashboard_name_metrics_that_there_are() {
    let text = metrics::classic(&metrics::text(large(2)));
    let described: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    let dashboard = include_str!("../../../../packaging/grafana.json");
    let alerts = include_str!("../../../../packaging/prometheus-alerts.yml");
    let parsed: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = parsed["panels"].as_array().unwrap();
    assert!(
        panels.iter().all(|panel| panel["targets"][0]["expr"].is_string()),
        "{panels:?}"
    );
    let mut named = 0;
    for file in [dashboard, alerts] {
        for (at, _) in file.match_indices("homenode_") {
            let rest = &file[at..];
            let end = rest
                .find(|one: char| !one.is_ascii_alphanumeric() && one != '_')
                .unwrap_or(rest.len());
            let name = rest[..end].trim_end_matches("_bucket");
            assert!(described.contains(&name), "{name}: {described:?}");
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}

/// The server's answer is read, noted, and told to a browser and to Prometheus. CPUs are told by node, so more CPUs of a node change
/// nothing here; `homenode top` has a test of its own.
#[test]
fn a_second_of_eight_nodes_costs_the_page_little() {
    let mut pools = large(8);
    let answer = serde_json::to_string(&LiveReport {
        report: pools.pools[0].report.as_deref().unwrap().clone(),
        samples: vec![pools.pools[0].samples[599].as_ref().clone()],
    })
    .unwrap();
    let cost = median_cost(|| {
        let live: LiveReport = serde_json::from_str(&answer).unwrap();
        pools.pools[0].report = Some(Arc::new(live.report));
        let told = serde_json::to_string(&live::Live::of(&pools, 598_000)).unwrap();
        assert!(told.len() > 1000);
        assert!(metrics::text(pools.clone()).len() > 1000);
    });
    println!("a second of eight nodes costs the page {cost:?}");
    assert!(cost < Duration::from_micros(2500), "{cost:?}");
}

/// Opening a pipe waits for a writer, whatever signals come.
#[test]
fn a_pipe_is_no_file_of_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo")
        .args(["-m", "600"])
        .arg(&pipe)
        .status();
    assert!(made.unwrap().success());
    let refused = token_in(&pipe).unwrap_err().to_string();
    assert!(refused.contains("is no regular file"), "{refused}");
}
