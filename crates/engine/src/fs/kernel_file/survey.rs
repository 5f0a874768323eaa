//! Where the bytes of all backing files lie, found in looks that each take a limited time.

use super::super::table::Table;
use super::{BTreeMap, Clock, Error, Fs, Ino, Inode, KernelFile, Lies, Memory, NodeId, Result, huge};
use crate::BLOCK_BYTES;
use std::sync::Arc;

/// A look at all backing files, which goes on with the next call where the last one stopped.
#[derive(Debug, Default)]
pub struct Survey {
    /// Shard of the table that is looked at next.
    shard: usize,
    /// Inodes of the one before that are not looked at yet, the next one last.
    rest: Vec<Ino>,
    /// The file in whose midst the last call stopped.
    part: Option<Part>,
    /// Bytes on each node of what was looked at.
    by_node: BTreeMap<NodeId, u64>,
    /// Bytes on each node by the last look that came to its end.
    whole: Option<Vec<(NodeId, u64)>>,
}

/// A file as far as it was looked at.
#[derive(Debug)]
pub(super) struct Part {
    next: u64,
    by_node: BTreeMap<NodeId, u64>,
    /// Size and blocks at the beginning: it may grow as fast as it is looked at.
    size: u64,
    blocks: u64,
    /// [`super::Found::changes`] at the beginning, and whether somebody could write then.
    changes: u64,
    was_written: bool,
}

impl Survey {
    /// Bytes of all backing files on each node, ascending by node, in the last look that came to its end; before that in what was looked at.
    #[must_use]
    pub fn by_node(&self) -> Vec<(NodeId, u64)> {
        if let Some(whole) = &self.whole {
            return whole.clone();
        }
        let mut by_node = self.by_node.clone();
        if let Some(part) = &self.part {
            add(&mut by_node, part.by_node.iter().map(|(node, bytes)| (*node, *bytes)));
        }
        by_node.into_iter().collect()
    }

    /// The inode to look at, until it is [`Survey::done`] with; `None` at the end.
    fn next(&mut self, table: &Table) -> Option<Arc<Inode>> {
        loop {
            while let Some(ino) = self.rest.last() {
                if let Some(inode) = table.find(*ino) {
                    return Some(inode);
                }
                self.done();
            }
            self.rest = table.inodes_of(self.shard)?;
            self.shard += 1;
        }
    }

    fn done(&mut self) {
        self.rest.pop();
        self.part = None;
    }
}

fn add(sum: &mut BTreeMap<NodeId, u64>, more: impl IntoIterator<Item = (NodeId, u64)>) {
    for (node, bytes) in more {
        *sum.entry(node).or_default() += bytes;
    }
}

impl KernelFile {
    /// Bytes on each node, as they were found before if no process can have changed that since; else of all that is looked at now. `None`, and where it
    /// stopped in `part`, when `goes_on` has said no before the end.
    pub(super) fn known_map(&self, part: &mut Option<Part>, goes_on: &dyn Fn() -> bool) -> Result<Option<Lies>> {
        let mut looked = match part.take() {
            Some(looked) => looked,
            None => {
                let changes = {
                    let found = self.found.lock();
                    if let Some(lies) = &found.lies
                        && found.blocks.is_none_or(|blocks| blocks == self.status().blocks)
                    {
                        return Ok(Some(lies.clone()));
                    }
                    found.changes
                };
                let now = self.status();
                Part {
                    next: 0,
                    by_node: BTreeMap::new(),
                    size: now.size,
                    blocks: now.blocks,
                    changes,
                    was_written: self.may_be_written(),
                }
            }
        };
        let mut next = Some(looked.next);
        while let Some(from) = next {
            looked.next = from;
            if !goes_on() {
                *part = Some(looked);
                return Ok(None);
            }
            next = self
                .map_part(from, &mut looked.by_node)?
                .filter(|from| *from < looked.size);
        }
        let lies: Lies = looked.by_node.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        let mut found = self.found.lock();
        // A writer that comes now forgets it; one that came before has set the flag. One that has ended meanwhile had set it at the beginning.
        if found.changes == looked.changes && !looked.was_written && !self.may_be_written() {
            found.lies = Some(lies.clone());
            // The last huge page may reach behind the end.
            let whole = looked.size.next_multiple_of(if looked.size < huge::HUGE_BYTES {
                1
            } else {
                huge::HUGE_BYTES
            });
            found.blocks = (looked.blocks * (BLOCK_BYTES as u64) < whole).then_some(looked.blocks);
        }
        Ok(Some(lies))
    }

    /// Bytes on a node; 0 for a file that is gone.
    pub(super) fn bytes_on(&self, node: NodeId) -> Result<u64> {
        match self.known_map(&mut None, &|| true) {
            Ok(map) => Ok(map
                .iter()
                .flatten()
                .find(|(on, _)| *on == node)
                .map_or(0, |(_, bytes)| *bytes)),
            Err(Error::Stale) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Goes on with a look at all backing files, while `goes_on`, which it asks before each inode and each part of a file, or to its end. What was found
    /// before is taken where nobody can have changed it.
    pub fn survey(&self, survey: &mut Survey, goes_on: impl Fn() -> bool) {
        while let Some(inode) = survey.next(&self.table) {
            if !goes_on() {
                return;
            }
            if let Some(file) = inode.kernel_file() {
                if file.may_be_written() {
                    file.settle_writers(|| self.opens(&inode).writers > 0);
                }
                // A file that is gone lies nowhere.
                match file
                    .known_map(&mut survey.part, &goes_on)
                    .unwrap_or(Some(Lies::default()))
                {
                    Some(lies) => add(&mut survey.by_node, lies),
                    None => return,
                }
            }
            survey.done();
        }
        let whole = std::mem::take(survey).by_node;
        survey.whole = Some(whole.into_iter().collect());
    }

    /// Bytes of all backing files on each node, ascending by node.
    pub fn backing_by_node(&self) -> Vec<(NodeId, u64)> {
        let mut survey = Survey::default();
        self.survey(&mut survey, || true);
        survey.by_node()
    }
}
