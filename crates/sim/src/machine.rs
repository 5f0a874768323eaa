//! A machine: cores, memories and the links between them, as queues that lines go through.
//!
//! A copy takes as long as the slowest of three: the core, which has a number of lines under way and waits for each as long as the
//! latency is, or takes what was measured; the home's memory; and each link on the way, which serve their lines in the order in which
//! copies begin.
//! Not modelled: refreshes and banks of memory, congestion within a socket, frequencies of cores, page tables.

use crate::constants::{Copies, ps};
use crate::{Drawn, LINE_BYTES, PS_PER_NS};
use homenode_policy::NodeId;
use homenode_policy::topology::{LatencySource, Topology};
use std::collections::VecDeque;

/// Most nodes of a machine.
const NODES_MAX: usize = 254;
/// Lines of a page of 4 KiB.
pub(crate) const PAGE_LINES: u64 = 64;
/// Lines after which a core reads ahead as far as it ever does: 64 KiB.
pub(crate) const RAMP_LINES: u64 = 1024;
/// A line from the cache of the node takes this part of one from its memory.
const CACHED_PERCENT: u64 = 25;

/// Hardware in one run.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Node of each core.
    nodes_of_cores: Vec<u32>,
    nodes: Vec<Node>,
    /// `ways[a][b]`: from cores of node a to memory of node b.
    ways: Vec<Vec<Way>>,
    links: Vec<Server>,
    link_line_ps: u64,
    transfer_ps: u64,
    transfer_hop_ps: u64,
    written_percent: u64,
    /// Percent by which the first lines of a copy take longer: those of a page, and up to [`RAMP_LINES`].
    first_percent: u64,
    ramp_percent: u64,
    /// Instead, of a machine that was measured.
    measured: Option<Measured>,
    traffic: Traffic,
}

/// Bytes that copies moved since [`Machine::take_traffic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Between cores and the memory of their own node.
    pub local_bytes: u64,
    /// Between cores and memory of another node.
    pub remote_bytes: u64,
}

#[derive(Clone, Debug)]
struct Node {
    id: NodeId,
    memory_bytes: u64,
    memory: Server,
    line_ps: u64,
    /// Bytes of its last-level caches; 0 where the machine tells none.
    cache_bytes: u64,
    /// Lines, of a hundred that its cores copy, that are in its caches.
    hit_percent: u64,
    cores: u64,
    /// Cores at work; none before [`Machine::set_working_bytes`].
    at_work: u64,
    /// When the first of them began to copy since then, and the time in which they copied, added up.
    since_ps: Option<u64>,
    copying_ps: u64,
}

impl Node {
    /// Percent of the time, up to `now`, in which a core at work copies. What it does meanwhile crowds no other one's copies.
    fn copying_percent(&self, now: u64) -> u64 {
        let lasted = now.saturating_sub(self.since_ps.unwrap_or(now));
        let all = u128::from(lasted) * u128::from(self.at_work);
        let percent = (u128::from(self.copying_ps) * 100).checked_div(all);
        percent.map_or(100, |percent| u64::try_from(percent).unwrap_or(100).min(100))
    }
}

/// Copies that were measured: what a core takes that copies alone, and while each core of its node does.
#[derive(Clone, Debug)]
struct Measured {
    alone: Curve,
    crowded: Option<Curve>,
}

impl Measured {
    /// `line_ps`: time of a line from the own node. None where nothing was measured.
    fn new(drawn: &Drawn, line_ps: u64) -> Option<Self> {
        Some(Self {
            alone: Curve::new(&drawn.copies, line_ps)?,
            crowded: Curve::new(&drawn.crowded_copies, line_ps),
        })
    }

    /// Work of a core of `node` in a copy that begins at `now`.
    fn work(&self, node: &Node, now: u64, lines: u64) -> u64 {
        let mut work = self.alone.of(lines);
        if let (Some(crowded), 2..) = (&self.crowded, node.at_work) {
            let others_percent = signed((node.at_work - 1) * node.copying_percent(now));
            work += (crowded.of(lines) - work) * others_percent / signed(100 * (node.cores - 1));
        }
        work.max(0).unsigned_abs()
    }
}

/// Work of a core in a copy of so many lines, in hundredths of a line's time: points in ascending order, straight between them and on
/// from the last two.
#[derive(Clone, Debug)]
struct Curve(Vec<(u64, i64)>);

impl Curve {
    /// Times that were measured, as points. Where there are none, no curve. Larger copies take as long as smaller ones, or longer.
    fn new(copies: &Copies, line_ps: u64) -> Option<Self> {
        let mut points = vec![(0, 0)];
        for (bytes, ns) in copies {
            let (before, least) = points[points.len() - 1];
            let (lines, work) = (
                bytes.div_ceil(LINE_BYTES),
                signed(ps(*ns) * 100 / line_ps.max(1)).max(least),
            );
            if lines == before {
                points.pop();
            }
            points.push((lines, work));
        }
        (points.len() > 1).then_some(Self(points))
    }

    fn of(&self, lines: u64) -> i64 {
        let after = self.0.partition_point(|(at, _)| *at < lines).clamp(1, self.0.len() - 1);
        let ((from, before), (to, then)) = (self.0[after - 1], self.0[after]);
        before + (then - before) * (signed(lines) - signed(from)) / signed(to - from)
    }
}

/// Lines and hundredths of them: far below 2^63.
fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("lines of a copy are far below 2^63")
}

/// Server of lines, one after another: a memory or a link.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    free_at: u64,
}

#[derive(Clone, Debug, Default)]
struct Way {
    latency_ps: u64,
    /// Time of each line that a core copies.
    line_ps: u64,
    /// Links on the way, by number.
    links: Vec<usize>,
}

/// Why there is no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// Each CPU is offline.
    #[error("the machine has no CPU that runs: a load needs one")]
    NoCpu,
    /// Each node is without memory.
    #[error("the machine has no memory: bytes need a node that has some")]
    NoMemory,
    /// Homes are told by a byte.
    #[error("the machine has {0} nodes, and the simulator takes at most {NODES_MAX}")]
    TooManyNodes(usize),
    /// Another node's memory seems nearer than the own.
    #[error(
        "the distances contradict themselves: from {from} the memory of {to} is nearer ({far}) than its own ({near})"
    )]
    Distances {
        /// Asking node.
        from: NodeId,
        /// Node that seems nearer.
        to: NodeId,
        /// Distance to its own memory.
        near: u32,
        /// Distance to the other one.
        far: u32,
    },
}

impl Server {
    /// Serves lines at `now` or later; returns when the last is through.
    fn serve(&mut self, now: u64, work_ps: u64) -> u64 {
        self.free_at = self.free_at.max(now) + work_ps;
        self.free_at
    }
}

impl Machine {
    /// The machine of a topology, with the constants of one run. Its CPUs that run are the cores, in their order.
    ///
    /// # Errors
    /// See [`MachineError`].
    pub fn new(topology: &Topology, drawn: &Drawn) -> Result<Self, MachineError> {
        let ids = topology.node_ids();
        let place = |id: NodeId| {
            ids.iter()
                .position(|other| *other == id)
                .expect("a topology has its nodes")
        };
        let online = topology.cpus().iter().filter(|cpu| cpu.online);
        let nodes_of_cores: Vec<u32> = online
            .map(|cpu| u32::try_from(place(topology.cpu_nodes()[cpu.id.0 as usize])).expect("nodes are few"))
            .collect();
        if nodes_of_cores.is_empty() {
            return Err(MachineError::NoCpu);
        }
        if topology.nodes().iter().all(|node| node.memory_bytes == 0) {
            return Err(MachineError::NoMemory);
        }
        if ids.len() > NODES_MAX {
            return Err(MachineError::TooManyNodes(ids.len()));
        }
        let (ways, link_count) = ways(topology, drawn)?;
        let memory_line_ps = ps(LINE_BYTES as f64 / drawn.memory_bytes_per_ns);
        let nodes = topology.nodes().iter().enumerate().map(|(at, node)| {
            let level = topology.caches().iter().map(|cache| cache.level).max().unwrap_or(0);
            let caches = topology
                .caches()
                .iter()
                .filter(|cache| cache.level == level && level > 1);
            let of_node = caches.filter(|cache| cache.cpus.first().is_some_and(|cpu| node.cpus.contains(cpu)));
            Node {
                id: node.id,
                memory_bytes: node.memory_bytes,
                memory: Server::default(),
                line_ps: memory_line_ps,
                cache_bytes: of_node.map(|cache| cache.bytes).sum(),
                hit_percent: 0,
                cores: nodes_of_cores.iter().filter(|on| **on as usize == at).count() as u64,
                at_work: 0,
                since_ps: None,
                copying_ps: 0,
            }
        });
        let nodes = nodes.collect();
        Ok(Self {
            measured: Measured::new(drawn, ways[0][0].line_ps),
            first_percent: ps(drawn.first_percent) / PS_PER_NS,
            ramp_percent: ps(drawn.ramp_percent) / PS_PER_NS,
            nodes_of_cores,
            nodes,
            ways,
            links: vec![Server::default(); link_count],
            link_line_ps: ps(LINE_BYTES as f64 / drawn.link_bytes_per_ns),
            transfer_ps: ps(drawn.transfer_ns),
            transfer_hop_ps: ps(drawn.transfer_hop_ns),
            written_percent: ps(drawn.lines_per_written) / 10,
            traffic: Traffic::default(),
        })
    }

    /// Number of cores.
    #[must_use]
    pub fn cores(&self) -> u32 {
        u32::try_from(self.nodes_of_cores.len()).expect("CPU numbers are 32 bits")
    }

    /// Number of nodes, with and without cores and memory. Nodes are named by their place, from 0.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.nodes.len()).expect("node numbers are 16 bits")
    }

    /// Node of a core, by place.
    #[must_use]
    pub fn node_of(&self, core: u32) -> u32 {
        self.nodes_of_cores[core as usize]
    }

    /// The kernel's number of the node at a place.
    #[must_use]
    pub fn id(&self, node: u32) -> NodeId {
        self.nodes[node as usize].id
    }

    /// Bytes of memory of a node.
    #[must_use]
    pub fn memory_bytes(&self, node: u32) -> u64 {
        self.nodes[node as usize].memory_bytes
    }

    /// Says that each of these cores works on so many bytes of its own: the caches of its node have as many lines of those as fit, and lose
    /// them at random. Until it is said, nothing is in a cache.
    pub fn set_working_bytes(&mut self, cores: &[u32], bytes_each: u64) {
        for (place, node) in (0..).zip(&mut self.nodes) {
            let on_node = cores
                .iter()
                .filter(|core| self.nodes_of_cores[**core as usize] == place)
                .count() as u64;
            let hits = u128::from(node.cache_bytes) * 100 / u128::from((on_node * bytes_each).max(1));
            node.hit_percent = u64::try_from(hits).unwrap_or(100).min(100);
            node.at_work = on_node;
            (node.since_ps, node.copying_ps) = (None, 0);
        }
    }

    /// A device on `node` moves bytes from or to memory of `home`; returns when it has done.
    pub fn transfer(&mut self, now: u64, node: u32, home: u32, bytes: u64) -> u64 {
        let lines = bytes.div_ceil(LINE_BYTES);
        self.reserve(now, node, home, lines)
    }

    /// Latencies in picoseconds from each node to each, as [`homenode_policy::pool::Monitor`] takes them.
    #[must_use]
    pub fn latencies(&self) -> Vec<Vec<u32>> {
        let of = |way: &Way| u32::try_from(way.latency_ps).unwrap_or(u32::MAX);
        self.ways.iter().map(|row| row.iter().map(of).collect()).collect()
    }

    /// Latency of memory of `home` from cores of `node`.
    #[must_use]
    pub fn latency_ps(&self, node: u32, home: u32) -> u64 {
        self.ways[node as usize][home as usize].latency_ps
    }

    /// Time in which a modified line goes from the cache of one core to that of another.
    #[must_use]
    pub fn transfer_ps(&self, from: u32, to: u32) -> u64 {
        let way = &self.ways[self.node_of(to) as usize][self.node_of(from) as usize];
        self.transfer_ps + self.transfer_hop_ps * way.links.len() as u64
    }

    /// A core reads so many bytes of memory of `home` from `now` on; returns when it has them.
    pub fn read(&mut self, now: u64, core: u32, home: u32, bytes: u64) -> u64 {
        self.copy(now, core, home, bytes, 100)
    }

    /// A core writes so many bytes; returns when it has done.
    pub fn write(&mut self, now: u64, core: u32, home: u32, bytes: u64) -> u64 {
        self.copy(now, core, home, bytes, self.written_percent)
    }

    /// A core reads lines one after another, each of which tells where the next is; returns when it has the last.
    pub fn chase(&mut self, now: u64, core: u32, home: u32, lines: u64) -> u64 {
        let latency = self.latency_ps(self.node_of(core), home);
        self.read(now, core, home, lines * LINE_BYTES)
            .max(now + lines * latency)
    }

    /// Bytes since the last call.
    pub fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    #[inline]
    fn copy(&mut self, now: u64, core: u32, home: u32, bytes: u64, percent: u64) -> u64 {
        let node = self.nodes_of_cores[core as usize];
        let lines = bytes.div_ceil(LINE_BYTES);
        let line_ps = self.ways[node as usize][home as usize].line_ps;
        let of_node = &self.nodes[node as usize];
        let (missed, core_ps) = match &self.measured {
            // It has what a write takes more, and hits, in it.
            Some(measured) => (lines, measured.work(of_node, now, lines) * line_ps / 100),
            None => {
                let lines = lines * percent / 100;
                let hits = lines * of_node.hit_percent / 100;
                let near_ps = self.ways[node as usize][node as usize].line_ps * CACHED_PERCENT / 100;
                let missed = lines - hits;
                let slow = missed.min(PAGE_LINES) * self.first_percent + missed.min(RAMP_LINES) * self.ramp_percent;
                (missed, (100 * missed + slow) * line_ps / 100 + hits * near_ps)
            }
        };
        if node == home {
            self.traffic.local_bytes += bytes;
        } else {
            self.traffic.remote_bytes += bytes;
        }
        let of_node = &mut self.nodes[node as usize];
        of_node.since_ps.get_or_insert(now);
        of_node.copying_ps += core_ps;
        self.reserve(now, node, home, missed).max(now + core_ps).max(now + 1)
    }

    /// Lines between a node and memory of a home take their turn at the links on the way and at the memory.
    #[inline]
    fn reserve(&mut self, now: u64, node: u32, home: u32, lines: u64) -> u64 {
        let mut end = now;
        for link in &self.ways[node as usize][home as usize].links {
            end = end.max(self.links[*link].serve(now, lines * self.link_line_ps));
        }
        let of_home = &mut self.nodes[home as usize];
        end.max(of_home.memory.serve(now, lines * of_home.line_ps))
    }
}

/// Ways between all nodes, and the number of links, each of which leads one way.
///
/// Nodes at the least remote distance of either are joined by a link; farther ones are reached over others, by the fewest links, lowest
/// nodes first.
fn ways(topology: &Topology, drawn: &Drawn) -> Result<(Vec<Vec<Way>>, usize), MachineError> {
    let (ids, latency) = (topology.node_ids(), topology.latency());
    let count = ids.len();
    let matrix = &latency.matrix;
    for from in 0..count {
        let near = matrix[from][from];
        if let Some(to) = (0..count).find(|to| matrix[from][*to] < near) {
            return Err(MachineError::Distances {
                from: ids[from],
                to: ids[to],
                near,
                far: matrix[from][to],
            });
        }
    }
    let nearest = |from: usize| (0..count).filter(|to| *to != from).map(|to| matrix[from][to]).min();
    let is_joined =
        |a: usize, b: usize| a != b && (nearest(a) == Some(matrix[a][b]) || nearest(b) == Some(matrix[b][a]));
    let link = |from: usize, to: usize| from * count + to;
    let is_told = matches!(latency.source, LatencySource::Hmat | LatencySource::Measured);
    let ways = (0..count).map(|from| {
        let routes = routes(count, from, &is_joined);
        (0..count)
            .map(|to| {
                let links: Vec<_> = routes[to].windows(2).map(|pair| link(pair[0], pair[1])).collect();
                let ns = if is_told {
                    f64::from(matrix[from][to])
                } else {
                    drawn.local_ns + drawn.hop_ns * links.len() as f64
                };
                Way {
                    latency_ps: ps(ns),
                    line_ps: ps(ns / drawn.lines_under_way),
                    links,
                }
            })
            .collect()
    });
    Ok((ways.collect(), count * count))
}

/// Nodes on the shortest way from one node to each; of two parts of a machine that nothing joins, straight.
fn routes(count: usize, from: usize, is_joined: &impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let mut routes: Vec<Option<Vec<usize>>> = vec![None; count];
    routes[from] = Some(vec![from]);
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        let so_far = routes[node].clone().expect("queued nodes have a route");
        for (next, route) in routes.iter_mut().enumerate() {
            if route.is_none() && is_joined(node, next) {
                *route = Some(so_far.iter().copied().chain([next]).collect());
                queue.push_back(next);
            }
        }
    }
    let straight = |(to, route): (usize, Option<Vec<usize>>)| route.unwrap_or_else(|| vec![from, to]);
    routes.into_iter().enumerate().map(straight).collect()
}

/// Topologies of machines that are described by a few numbers.
pub mod shapes {
    use homenode_policy::topology::{Cache, CacheKind, Cpu, Device, Latency, LatencySource, Node, Parts, Topology};
    use homenode_policy::{CpuId, NodeId};

    /// Distances between the nodes of a machine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Shape {
        /// Each node is joined to each other one.
        Full,
        /// Numbers of joined nodes differ in one bit: four nodes are a square, eight a cube.
        Cube,
    }

    /// A machine of equal nodes, with CPUs numbered node by node.
    ///
    /// # Panics
    /// When there is no node or more than 4096 CPUs.
    #[must_use]
    pub fn machine(nodes: u16, cores: u32, memory_bytes: u64, shape: Shape, devices: Vec<Device>) -> Topology {
        let cpus_of = |node: u16| (u32::from(node) * cores..(u32::from(node) + 1) * cores).map(CpuId);
        let count = u32::from(nodes) * cores;
        assert!(nodes > 0 && count <= 4096, "{nodes} nodes of {cores} cores");
        let distance = |a: u16, b: u16| match shape {
            _ if a == b => 10,
            Shape::Full => 21,
            Shape::Cube => 10 + 11 * (a ^ b).count_ones(),
        };
        let parts = Parts {
            nodes: (0..nodes)
                .map(|node| Node {
                    cpus: cpus_of(node).collect(),
                    memory_bytes,
                    ..Node::new(NodeId(node))
                })
                .collect(),
            cpus: (0..nodes)
                .flat_map(|node| {
                    cpus_of(node).map(move |id| Cpu {
                        id,
                        core: Some(id.0),
                        package: Some(u32::from(node)),
                        online: true,
                    })
                })
                .collect(),
            possible_cpus: count,
            caches: (0..nodes)
                .map(|node| Cache {
                    level: 3,
                    kind: CacheKind::Unified,
                    bytes: 24 << 20,
                    cpus: cpus_of(node).collect(),
                })
                .collect(),
            latency: Latency {
                source: LatencySource::Slit,
                matrix: (0..nodes)
                    .map(|a| (0..nodes).map(|b| distance(a, b)).collect())
                    .collect(),
            },
            devices,
        };
        Topology::new(parts).expect("equal nodes fit together")
    }
}

#[cfg(test)]
mod tests {
    use super::shapes::{Shape, machine};
    use super::*;
    use crate::Constants;
    use homenode_policy::topology::{Latency, Node, Parts};

    fn of(nodes: u16, shape: Shape) -> Machine {
        Machine::new(
            &machine(nodes, 2, 1 << 30, shape, Vec::new()),
            &Constants::SERVER.draw(1),
        )
        .unwrap()
    }

    #[test]
    fn remote_copies_take_longer_and_crowds_wait() {
        let mut quiet = of(4, Shape::Full);
        let local = quiet.read(0, 0, 0, 1 << 20);
        let remote = of(4, Shape::Full).read(0, 0, 1, 1 << 20);
        assert!(remote > local, "{remote} after {local}");
        let ends: Vec<_> = (0..32).map(|core| quiet.read(local, core % 8, 0, 1 << 20)).collect();
        assert!(ends[31] > 2 * ends[0], "memory serves one line at a time: {ends:?}");
        assert_eq!(
            quiet.take_traffic(),
            Traffic {
                local_bytes: 9 << 20,
                remote_bytes: 24 << 20
            }
        );
        assert_eq!(quiet.take_traffic(), Traffic::default());
    }

    #[test]
    fn measured_copies_take_what_was_measured() {
        let mut constants = Constants::SERVER;
        for (bytes, alone, crowded) in [
            (1 << 10, 100.0, 110.0),
            (4 << 10, 300.0, 400.0),
            (64 << 10, 6300.0, 8400.0),
        ] {
            constants.copies.insert(bytes, alone);
            constants.crowded_copies.insert(bytes, crowded);
        }
        assert!(constants.set("memory_bytes_per_ns", 1000.0));
        let drawn = constants.draw(1);
        let mut machine = Machine::new(&machine(2, 3, 1 << 30, Shape::Full, Vec::new()), &drawn).unwrap();
        let mut ns_of = |at_work: &[u32], home, bytes| {
            machine.set_working_bytes(at_work, 1 << 40);
            machine.read(0, 0, home, bytes) as f64 / PS_PER_NS as f64
        };
        // At the points, between them, below the first, beyond the last.
        for (bytes, ns) in [
            (1 << 10, 100.0),
            (4 << 10, 300.0),
            (34 << 10, 3300.0),
            (512, 50.0),
            (124 << 10, 12_300.0),
        ] {
            let told = ns_of(&[0, 3], 0, bytes);
            assert!((told / ns - 1.0).abs() < 0.01, "{bytes} bytes: {told}, {ns} measured");
        }
        for (cores, ns) in [(&[0, 1][..], 350.0), (&[0, 1, 2], 400.0)] {
            let told = ns_of(cores, 0, 4 << 10);
            assert!((told / ns - 1.0).abs() < 0.01, "{cores:?}: {told}, {ns} measured");
        }
        assert!(ns_of(&[0], 1, 4 << 10) > 300.0, "another node's memory is farther");
        machine.set_working_bytes(&[0], 1);
        let written = machine.write(0, 0, 0, 4 << 10) as f64 / PS_PER_NS as f64;
        assert!(
            (written / 300.0 - 1.0).abs() < 0.01,
            "hits and written lines are measured too: {written}"
        );
    }

    #[test]
    fn cores_crowd_each_other_while_they_copy() {
        let mut constants = Constants::SERVER;
        constants.copies.insert(4 << 10, 1000.0);
        constants.crowded_copies.insert(4 << 10, 2000.0);
        assert!(constants.set("memory_bytes_per_ns", 1000.0));
        let machine = machine(1, 2, 1 << 30, Shape::Full, Vec::new());
        // Each of two cores does something else for so many times as long as it copies.
        for (pauses, ns) in [(0, 2000.0), (1, 1500.0), (3, 1250.0)] {
            let mut machine = Machine::new(&machine, &constants.draw(1)).unwrap();
            machine.set_working_bytes(&[0, 1], 1 << 40);
            let (mut now, mut took) = (0, 0);
            for _ in 0..1000 {
                took = machine.write(now, 0, 0, 4 << 10) - now;
                machine.write(now, 1, 0, 4 << 10);
                now += took + pauses * took;
            }
            let told = took as f64 / PS_PER_NS as f64;
            assert!((told / ns - 1.0).abs() < 0.01, "{pauses} pauses: {told}, not {ns}");
        }
    }

    #[test]
    fn measured_copies_never_shrink() {
        let copies = Copies::from([(1, 50.0), (64, 40.0), (4096, 300.0), (8192, 200.0)]);
        let curve = Curve::new(&copies, 10_000).unwrap();
        let all: Vec<i64> = [0, 1, 32, 64, 128, 4096].map(|lines| curve.of(lines)).into();
        assert!(all.is_sorted() && all[1] == 500 && all[5] == 3000, "{all:?}");
    }

    #[test]
    fn cached_lines_are_near_wherever_they_lie() {
        let mut machine = of(2, Shape::Full);
        let far = machine.read(0, 0, 1, 1 << 20);
        let later = 10 * far;
        // 24 MiB of caches for two cores with 24 MiB each.
        machine.set_working_bytes(&[0, 1], 24 << 20);
        let half = machine.read(later, 0, 1, 1 << 20) - later;
        assert!(half < far * 3 / 4 && half > far / 2, "{half} and {far}");
    }

    #[test]
    fn a_cube_has_ways_of_three_links() {
        let cube = of(8, Shape::Cube);
        for (to, links) in [(0, 0), (1, 1), (2, 1), (3, 2), (7, 3)] {
            assert_eq!(cube.ways[0][to].links.len(), links, "to node {to}");
        }
        assert!(cube.latency_ps(0, 7) > cube.latency_ps(0, 3));
        assert!(cube.transfer_ps(0, 15) > cube.transfer_ps(0, 1));
    }

    #[test]
    fn impossible_machines_are_refused() {
        let drawn = Constants::SERVER.draw(1);
        let mut parts = Parts {
            nodes: vec![Node::new(NodeId(0)), Node::new(NodeId(1))],
            latency: Latency {
                matrix: vec![vec![10, 5], vec![10, 10]],
                ..Latency::default()
            },
            ..Parts::default()
        };
        let why = |parts: &Parts| Machine::new(&Topology::new(parts.clone()).unwrap(), &drawn).unwrap_err();
        assert_eq!(why(&parts), MachineError::NoCpu);
        let many = machine(300, 1, 1 << 30, Shape::Full, Vec::new());
        assert_eq!(
            Machine::new(&many, &drawn).unwrap_err(),
            MachineError::TooManyNodes(300)
        );
        let with_cpus = machine(2, 1, 0, Shape::Full, Vec::new());
        assert_eq!(Machine::new(&with_cpus, &drawn).unwrap_err(), MachineError::NoMemory);
        parts.nodes = machine(2, 1, 1 << 30, Shape::Full, Vec::new()).nodes().to_vec();
        parts.cpus = machine(2, 1, 1 << 30, Shape::Full, Vec::new()).cpus().to_vec();
        parts.possible_cpus = 2;
        assert!(matches!(why(&parts), MachineError::Distances { near: 10, far: 5, .. }));
    }
}
