//! The filesystem on a pool of every machine: where the blocks of writers on each CPU lie. The bytes themselves are dropped.

use crate::members::{Model, machines};
use homenode_engine::fs::{Asking, Error, Fs, Inode, NewInode, POLICY_XATTR, XattrMode};
use homenode_engine::pool::{Machine, MemberKind};
use homenode_engine::{BLOCK_BYTES, Block, Clock, CpuId, MemberId, Memory, MemoryError, NodeId, Starved};
use homenode_policy::topology::Topology;
use std::sync::Arc;

const RUN_BYTES: usize = 2 << 20;
const RUN_BLOCKS: u64 = (RUN_BYTES / BLOCK_BYTES) as u64;
/// Runs of the smallest member; one is more than 1 % and less than 2 %, so that a member becomes fat before its last run.
const RUNS_MIN: u64 = 64;

/// Memory without bytes: what is asked here is where blocks lie.
#[derive(Debug)]
struct NoBytes;

impl Memory for NoBytes {
    fn load(&self, _from: Block, _offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        to.fill(0);
        Ok(())
    }
    fn store(&self, _to: Block, _offset: usize, _from: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }
    fn zero(&self, _at: Block, _offset: usize, _bytes: usize) -> Result<(), MemoryError> {
        Ok(())
    }
    fn copy(&self, _from: Block, _to: Block, _blocks: u64) -> Result<(), MemoryError> {
        Ok(())
    }
    fn populate(&self, _member: MemberId, _first: u64, _blocks: u64) -> Result<(), Starved> {
        Ok(())
    }
}

#[derive(Debug)]
struct Midnight;

impl Clock for Midnight {
    fn now_ns(&self) -> i64 {
        0
    }
}

/// A filesystem on a machine, and what it has to do.
struct World {
    fs: Fs<NoBytes, Midnight>,
    model: Model,
}

impl World {
    /// Makes a filesystem with a member on each node with memory, in proportion to that memory.
    fn new(machine: &Topology) -> Self {
        let sizes = machine.nodes().iter().map(|node| node.memory_bytes);
        let smallest = sizes.filter(|bytes| *bytes > 0).min().expect("some node has memory");
        let model = Model::new(machine, |bytes| bytes * RUNS_MIN / smallest);
        let engine = Machine {
            cpu_nodes: machine.cpu_nodes().to_vec(),
            nodes: machine.node_ids(),
            latency: machine.latency().matrix.clone(),
            files_max: 1 << 20,
        };
        let fs = Fs::new(&engine, NoBytes, Midnight, new_inode(0o755));
        for member in &model.members {
            fs.pool()
                .add(MemberKind::Dram, member.home, member.capacity * RUN_BLOCKS)
                .expect("not that many members");
        }
        Self { fs, model }
    }

    fn file(&self, name: &str) -> Arc<Inode> {
        self.fs
            .create(&self.fs.root(), name.as_bytes(), new_inode(0o100_644))
            .expect("a new name")
    }

    fn write(&self, cpu: u32, inode: &Inode, offset: u64, bytes: usize) -> Result<usize, Error> {
        let node = self.fs.pool().cpu_node(CpuId(cpu));
        let slot = self.fs.slots().claim().expect("slots are free");
        let asking = Asking {
            waits: true,
            user: Some(0),
            slot: &slot,
            cpu: CpuId(cpu),
            node: &|| node,
        };
        self.fs.write(&asking, inode, offset, &vec![1; bytes], false)
    }

    /// Writes a file of a run, which the model says where it lies.
    fn write_run(&mut self, cpu: u32, name: &str) -> NodeId {
        let asking = self.fs.pool().cpu_node(CpuId(cpu));
        let expected = self.model.target(asking).expect("the model has a candidate");
        let inode = self.file(name);
        assert_eq!(self.write(cpu, &inode, 0, RUN_BYTES), Ok(RUN_BYTES));
        assert_eq!(
            self.fs.map(&inode),
            [(expected, RUN_BYTES as u64)],
            "{name} from {asking}: {:?}",
            self.model.members
        );
        let member = self.model.member(expected);
        member.set_used(member.used + 1);
        expected
    }

    fn remove_run(&mut self, home: NodeId, name: &str) {
        self.fs.unlink(&self.fs.root(), name.as_bytes()).expect("a known name");
        let member = self.model.member(home);
        member.set_used(member.used - 1);
    }
}

fn new_inode(mode: u32) -> NewInode {
    NewInode::of_root(mode)
}

/// The first CPU of each node that has any.
fn writers(machine: &Topology) -> Vec<(NodeId, u32)> {
    let first = |node: &homenode_policy::topology::Node| Some((node.id, node.cpus.first()?.0));
    machine.nodes().iter().filter_map(first).collect()
}

#[test]
fn full_nodes_spill_to_the_nearest_and_recover() {
    for (name, machine) in machines() {
        for (asking, cpu) in writers(&machine) {
            let mut world = World::new(&machine);
            let mut files = Vec::new();
            while world.model.target(asking).is_some() {
                let file = format!("{}", files.len());
                files.push((world.write_run(cpu, &file), file));
            }
            for member in &world.model.members {
                let status = world.fs.pool().status();
                let spilt: u64 = status
                    .spills
                    .iter()
                    .filter(|spill| spill.home == member.home)
                    .map(|spill| spill.bytes)
                    .sum();
                let expected = if member.home == asking {
                    0
                } else {
                    member.used * RUN_BYTES as u64
                };
                assert_eq!(spilt, expected, "{name}: from {asking} to {}", member.home);
                let written = status.accesses.iter().filter(|access| access.home == member.home);
                let from: Vec<_> = written.map(|access| (access.from, access.written_bytes)).collect();
                assert_eq!(
                    from,
                    [(asking, member.used * RUN_BYTES as u64)],
                    "{name}: to {}",
                    member.home
                );
                assert!(member.used < member.capacity, "{name}: fat before it is full");
            }
            // Files go, the farthest first, and after each one a file comes: the model says where, as nodes become candidates again.
            let mut last = None;
            while let Some((home, file)) = files.pop() {
                world.remove_run(home, &file);
                if world.model.target(asking).is_some() {
                    let anew = world.write_run(cpu, &file);
                    world.remove_run(anew, &file);
                    last = Some(anew);
                }
            }
            let home = world.model.target(asking);
            assert_eq!(last, home, "{name}: all is free");
            if world.model.members.iter().any(|member| member.home == asking) {
                assert_eq!(home, Some(asking), "{name}: home again");
            }
            assert_eq!(world.fs.pool().status().used, 0, "{name}");
            world.fs.check_invariants();
        }
    }
}

#[test]
fn every_cpu_uses_its_node_and_the_last_block_is_reachable() {
    for (name, machine) in machines() {
        let world = World::new(&machine);
        // As many again: CPUs that come later must not end anything either.
        let known = u32::try_from(machine.cpu_nodes().len()).expect("not that many CPUs");
        for cpu in 0..2 * known {
            let inode = world.file(&format!("{cpu}"));
            assert_eq!(world.write(cpu, &inode, 0, 1), Ok(1), "{name}: CPU {cpu}");
            if let Some(node) = machine.cpu_nodes().get(cpu as usize) {
                let home = world.model.target(*node).expect("nothing is fat yet");
                assert_eq!(world.fs.map(&inode), [(home, BLOCK_BYTES as u64)], "{name}: CPU {cpu}");
            }
        }
        let capacity: u64 = world
            .model
            .members
            .iter()
            .map(|member| member.capacity * RUN_BLOCKS)
            .sum();
        let mut left = (capacity - 2 * u64::from(known)) * BLOCK_BYTES as u64;
        let inode = world.file("last");
        let mut offset = 0;
        while left > 0 {
            let bytes = left.min(RUN_BYTES as u64);
            assert_eq!(
                world.write(0, &inode, offset, usize::try_from(bytes).unwrap()),
                Ok(usize::try_from(bytes).unwrap()),
                "{name}: {left} are left"
            );
            offset += bytes;
            left -= bytes;
        }
        assert_eq!(world.write(0, &inode, offset, 1), Err(Error::NoSpace), "{name}");
        for member in world.fs.pool().status().members {
            assert_eq!(member.used, member.capacity, "{name}: {}", member.home);
        }
        world.fs.check_invariants();
    }
}

#[test]
fn policies_of_files_reach_every_member() {
    for (name, machine) in machines() {
        let world = World::new(&machine);
        let (_, cpu) = writers(&machine)[0];
        let homes: Vec<NodeId> = world.model.members.iter().map(|member| member.home).collect();

        let file = world.file("interleaved");
        world
            .fs
            .set_xattr(&file, POLICY_XATTR, b"interleave", XattrMode::Either, false)
            .expect("the call always succeeds");
        let rounds = 2;
        for run in 0..rounds * homes.len() {
            assert_eq!(
                world.write(cpu, &file, (run * RUN_BYTES) as u64, RUN_BYTES),
                Ok(RUN_BYTES),
                "{name}"
            );
        }
        let each = |home: &NodeId| (*home, (rounds * RUN_BYTES) as u64);
        assert_eq!(
            world.fs.map(&file),
            homes.iter().map(each).collect::<Vec<_>>(),
            "{name}"
        );

        for home in &homes {
            let file = world.file(&format!("on {home}"));
            let policy = format!("node:{}", home.0);
            world
                .fs
                .set_xattr(&file, POLICY_XATTR, policy.as_bytes(), XattrMode::Either, false)
                .expect("the node has a member");
            assert_eq!(world.write(cpu, &file, 0, 3 * RUN_BYTES), Ok(3 * RUN_BYTES), "{name}");
            assert_eq!(world.fs.map(&file), [(*home, 3 * RUN_BYTES as u64)], "{name}");
        }
        assert_eq!(world.fs.pool().status().spills, [], "{name}: asked for, not spilt");
        world.fs.check_invariants();
    }
}
