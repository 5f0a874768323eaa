//! Eviction against a model that keeps its queues in vectors and its ghosts in a list, and what it promises of work and of scans.

mod seeded;

use homenode_policy::eviction::{Eviction, Ghosts, Look, Victim, WORK_MAX};
use proptest::prelude::*;
use std::collections::HashMap;

const CASES: u32 = 400;
const OPERATIONS: usize = 600;
/// Few keys, so that blocks return.
const KEYS: u64 = 200;
/// Limits of looks and of busy frames, equal to those of the eviction.
const LOOKS_MAX: usize = 64;
const BUSY_MAX: usize = 16;

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Brings in a block, in place of another one when there is no free frame.
    Miss(u64),
    Evict,
    /// Evicts a frame whose turn has not come.
    EvictEarly(u32),
    Use(u32),
    /// Uses a block that was not used before.
    UseFirst(u32),
    /// Makes a block dirty, or clean and cool.
    Dirty(u32, bool),
    /// Moves a block of the main queue to a free frame.
    Move(u32),
    /// Cuts a block away, and says so.
    Remove(u32),
    /// Cuts a block away, and leaves it to the next look.
    Vanish(u32),
    /// Nobody uses any more what was made cool.
    Settle,
}

fn operation() -> impl Strategy<Value = Operation> {
    let frame = || 0..100u32;
    prop_oneof![
        6 => (0..KEYS).prop_map(Operation::Miss),
        1 => Just(Operation::Evict),
        1 => frame().prop_map(Operation::EvictEarly),
        6 => frame().prop_map(Operation::Use),
        2 => frame().prop_map(Operation::UseFirst),
        3 => (frame(), prop::bool::weighted(0.7)).prop_map(|(frame, dirty)| Operation::Dirty(frame, dirty)),
        1 => frame().prop_map(Operation::Move),
        1 => frame().prop_map(Operation::Remove),
        1 => frame().prop_map(Operation::Vanish),
        1 => Just(Operation::Settle),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Cool,
    /// Cool, but maybe in use still.
    Cooling,
    Hot,
    /// Hot by its first use.
    First,
    Dirty,
    Vanished,
}

/// Key and state of each frame's block, as the cache keeps them for the eviction's looks.
type Table = HashMap<u32, (u64, State)>;

/// With `cooled` as the state of frames that it makes cool.
fn look(table: &mut Table, cooled: State, frame: u32) -> Look {
    let (_, state) = table.get_mut(&frame).expect("only frames with blocks are looked at");
    match state {
        State::Hot => {
            *state = cooled;
            Look::Referenced
        }
        State::First => {
            *state = cooled;
            Look::First
        }
        State::Cool => Look::Unused,
        State::Dirty | State::Cooling => Look::Busy,
        State::Vanished => Look::Gone,
    }
}

#[derive(Debug)]
struct Model {
    frames: usize,
    window: Vec<u32>,
    probation: Vec<u32>,
    main: Vec<u32>,
    /// Where those of `main` begin that were cooled lately.
    cooled: Option<u32>,
    /// Number of the last remembered victim with each key, counted from 1.
    ghosts: HashMap<u64, usize>,
    remembered: usize,
}

impl Model {
    fn insert(&mut self, frame: u32, is_returned: bool) -> Option<u32> {
        if is_returned {
            self.main.push(frame);
            return None;
        }
        self.window.push(frame);
        (self.window.len() > self.frames / 20).then(|| {
            let oldest = self.window.remove(0);
            self.probation.push(oldest);
            oldest
        })
    }

    fn remove(&mut self, frame: u32) {
        if self.cooled == Some(frame) {
            let at = self
                .main
                .iter()
                .position(|other| *other == frame)
                .expect("the frame is in the main queue");
            self.cooled = self.main.get(at + 1).copied();
        }
        for queue in [&mut self.window, &mut self.probation, &mut self.main] {
            queue.retain(|other| *other != frame);
        }
    }

    fn evict(&mut self, look: &mut dyn FnMut(u32) -> Look) -> Option<Victim> {
        let mut small_busy = (self.window.len() + self.probation.len()).min(BUSY_MAX);
        let mut main_busy = self.main.len().min(BUSY_MAX);
        let mut used = Vec::new();
        for _ in 0..LOOKS_MAX {
            let small = self
                .probation
                .first()
                .or(self.window.first())
                .filter(|_| small_busy > 0)
                .copied();
            let main = self.main.first().filter(|_| main_busy > 0).copied();
            let has_more = self.window.len() + self.probation.len() > self.frames / 10;
            let is_main = if has_more { small.is_none() } else { main.is_some() };
            let Some(frame) = (if is_main { main } else { small }) else {
                break;
            };
            if self.cooled == Some(frame) {
                self.cooled = None;
            }
            self.remove(frame);
            match look(frame) {
                Look::Unused => {
                    return Some(Victim {
                        frame,
                        is_remembered: !is_main,
                    });
                }
                Look::Referenced => {
                    self.main.push(frame);
                    used.push(frame);
                }
                Look::First if is_main => self.main.push(frame),
                Look::First => self.probation.push(frame),
                Look::Busy | Look::Young if is_main => {
                    main_busy -= 1;
                    self.main.push(frame);
                }
                Look::Busy | Look::Young => {
                    small_busy -= 1;
                    self.probation.push(frame);
                }
                Look::Gone => {}
            }
        }
        let first_used = used.first().copied();
        let is_main = |model: &Self, frame: &u32| model.main.contains(frame);
        self.cooled = self.cooled.or(first_used.filter(|frame| is_main(self, frame)));
        let victim = self.cooled.and_then(|from| self.evict_cooled(from, BUSY_MAX, look));
        let first_used = first_used.filter(|frame| victim.is_none() && is_main(self, frame));
        victim.or_else(|| self.evict_cooled(first_used?, 1, look))
    }

    fn replace(&mut self, frame: u32, other: u32) {
        let in_queues = [&mut self.window, &mut self.probation, &mut self.main]
            .into_iter()
            .flatten();
        let places = in_queues.chain(&mut self.cooled).filter(|place| **place == frame);
        places.for_each(|place| *place = other);
    }

    fn evict_early(&mut self, frame: u32, look: &mut dyn FnMut(u32) -> Look) -> Option<Victim> {
        if !self.probation.contains(&frame) {
            return None;
        }
        let look = look(frame);
        if !matches!(look, Look::Busy | Look::Young) {
            self.remove(frame);
        }
        match look {
            Look::Referenced => self.main.push(frame),
            Look::First => self.probation.push(frame),
            _ => {}
        }
        (look == Look::Unused).then_some(Victim {
            frame,
            is_remembered: true,
        })
    }

    fn evict_cooled(&mut self, from: u32, most: usize, look: &mut dyn FnMut(u32) -> Look) -> Option<Victim> {
        let from = self.main.iter().position(|frame| *frame == from)?;
        let lately: Vec<u32> = self.main[from..].iter().copied().take(most).collect();
        for frame in lately {
            match look(frame) {
                Look::Unused => {
                    self.remove(frame);
                    return Some(Victim {
                        frame,
                        is_remembered: false,
                    });
                }
                Look::Referenced | Look::First if self.cooled == Some(frame) => {
                    let at = self
                        .main
                        .iter()
                        .position(|other| *other == frame)
                        .expect("the frame is in the main queue");
                    self.cooled = self.main.get(at + 1).copied();
                }
                Look::Referenced | Look::First | Look::Busy | Look::Young => {}
                Look::Gone => self.remove(frame),
            }
        }
        None
    }
}

/// Both sides, each with a table of its own.
struct Sides {
    eviction: Eviction,
    ghosts: Ghosts,
    table: Table,
    model: Model,
    model_table: Table,
    free: Vec<u32>,
    /// State of frames that were made cool just now.
    cooled: State,
}

impl Sides {
    fn new(frames: u32, cooled: State) -> Self {
        Self {
            eviction: Eviction::new(frames),
            ghosts: Ghosts::new(frames as usize),
            table: Table::new(),
            model: Model {
                frames: frames as usize,
                window: vec![],
                probation: vec![],
                main: vec![],
                cooled: None,
                ghosts: HashMap::new(),
                remembered: 0,
            },
            model_table: Table::new(),
            free: (0..frames).collect(),
            cooled,
        }
    }

    fn evict(&mut self) -> Result<(), TestCaseError> {
        let before: Vec<_> = self.table.values().copied().collect();
        let (cooled, table, model_table) = (self.cooled, &mut self.table, &mut self.model_table);
        let victim = self.eviction.evict(&mut |frame| look(table, cooled, frame));
        let expected = self.model.evict(&mut |frame| look(model_table, cooled, frame));
        prop_assert_eq!(victim, expected);
        let may_go = |(_, state): &(u64, State)| matches!(state, State::Cool | State::Hot);
        let could_go = cooled == State::Cool && !before.is_empty() && before.iter().all(may_go);
        prop_assert!(victim.is_some() || !could_go, "no victim among evictable frames");
        self.end(victim)
    }

    fn evict_early(&mut self, frame: u32) -> Result<(), TestCaseError> {
        let (cooled, table, model_table) = (self.cooled, &mut self.table, &mut self.model_table);
        let is_new = self.model.window.contains(&frame) || self.model.main.contains(&frame);
        prop_assert_eq!(self.eviction.may_go_early(frame), !is_new);
        let victim = self
            .eviction
            .evict_early(frame, &mut |frame| look(table, cooled, frame));
        let expected = self
            .model
            .evict_early(frame, &mut |frame| look(model_table, cooled, frame));
        prop_assert_eq!(victim, expected);
        self.end(victim)
    }

    /// Gives a victim's frame back.
    fn end(&mut self, victim: Option<Victim>) -> Result<(), TestCaseError> {
        prop_assert_eq!(&self.table, &self.model_table);
        let Some(Victim { frame, is_remembered }) = victim else {
            return Ok(());
        };
        let (key, state) = self.table[&frame];
        prop_assert_eq!(state, State::Cool);
        if is_remembered {
            self.ghosts.remember(key);
            self.model.remembered += 1;
            self.model.ghosts.insert(key, self.model.remembered);
        }
        self.let_go(frame);
        Ok(())
    }

    fn miss(&mut self, key: u64) -> Result<(), TestCaseError> {
        if self
            .table
            .values()
            .any(|(other, state)| *other == key && *state != State::Vanished)
        {
            return Ok(());
        }
        if self.free.is_empty() {
            self.evict()?;
        }
        let Some(frame) = self.free.pop() else { return Ok(()) };
        let is_returned = self.ghosts.recall(key);
        // The set that a key belongs to is the table's to say; but no key is invented, and the newest 16 of any set stay.
        let age = self
            .model
            .ghosts
            .remove(&key)
            .map(|number| self.model.remembered - number);
        prop_assert!(age.is_some() || !is_returned, "{} was never evicted", key);
        prop_assert!(is_returned || age.is_none_or(|age| age >= 16), "{} is forgotten", key);
        let cool = self.eviction.insert(frame, is_returned);
        prop_assert_eq!(cool, self.model.insert(frame, is_returned));
        let state = if is_returned { State::Cool } else { State::Hot };
        for table in [&mut self.table, &mut self.model_table] {
            table.insert(frame, (key, state));
            // A dirty one stays dirty.
            if let Some((_, state @ State::Hot)) = cool.and_then(|cool| table.get_mut(&cool)) {
                *state = self.cooled;
            }
        }
        Ok(())
    }

    fn set(&mut self, frame: u32, from: &[State], to: State) {
        for table in [&mut self.table, &mut self.model_table] {
            if let Some((_, state)) = table.get_mut(&frame).filter(|(_, state)| from.contains(state)) {
                *state = to;
            }
        }
    }

    fn remove(&mut self, frame: u32) -> Result<(), TestCaseError> {
        let queues = [&self.model.window, &self.model.probation, &self.model.main];
        let is_held = queues.into_iter().flatten().any(|other| *other == frame);
        self.model.remove(frame);
        if frame < self.eviction.frames() {
            prop_assert_eq!(self.eviction.remove(frame), is_held);
            self.let_go(frame);
        }
        Ok(())
    }

    fn relocate(&mut self, frame: u32) -> Result<(), TestCaseError> {
        let is_main = self.model.main.contains(&frame);
        prop_assert_eq!(self.eviction.is_main(frame), is_main);
        if is_main && let Some(to) = self.free.pop() {
            self.eviction.replace(frame, to);
            self.model.replace(frame, to);
            for table in [&mut self.table, &mut self.model_table] {
                let entry = table.remove(&frame).expect("the frame has a block");
                table.insert(to, entry);
            }
            self.free.push(frame);
        }
        Ok(())
    }

    fn let_go(&mut self, frame: u32) {
        self.model_table.remove(&frame);
        if self.table.remove(&frame).is_some() {
            self.free.push(frame);
        }
    }

    fn apply(&mut self, operation: Operation) -> Result<(), TestCaseError> {
        use State::{Cool, Cooling, Dirty, First, Hot, Vanished};
        match operation {
            Operation::Miss(key) => self.miss(key)?,
            Operation::Evict => self.evict()?,
            Operation::EvictEarly(frame) if frame < self.eviction.frames() => self.evict_early(frame)?,
            Operation::EvictEarly(_) => {}
            Operation::UseFirst(frame) => self.set(frame, &[Cool, Cooling], First),
            Operation::Use(frame) => self.set(frame, &[Cool, Cooling], Hot),
            Operation::Dirty(frame, true) => self.set(frame, &[Cool, Cooling, Hot, First], Dirty),
            Operation::Dirty(frame, false) => self.set(frame, &[Dirty], Cool),
            Operation::Move(frame) if frame < self.eviction.frames() => self.relocate(frame)?,
            Operation::Move(_) => {}
            Operation::Remove(frame) => self.remove(frame)?,
            Operation::Vanish(frame) => self.set(frame, &[Cool, Cooling, Hot, First, Dirty], Vanished),
            Operation::Settle => (0..self.eviction.frames()).for_each(|frame| self.set(frame, &[Cooling], Cool)),
        }
        self.eviction.check_invariants();
        let held = self.model.window.len() + self.model.probation.len() + self.model.main.len();
        prop_assert_eq!(self.eviction.used() as usize, held);
        // Those that eviction met and dropped are free; the caller knows as it was asked.
        let queues = [&self.model.window, &self.model.probation, &self.model.main];
        let gone: Vec<u32> = self
            .table
            .keys()
            .copied()
            .filter(|frame| !queues.iter().any(|queue| queue.contains(frame)))
            .collect();
        gone.into_iter().for_each(|frame| self.let_go(frame));
        Ok(())
    }
}

#[test]
fn the_eviction_agrees_with_a_model_of_vectors() {
    let frames = prop_oneof![1..=16u32, 17..=100u32];
    let operations = proptest::collection::vec(operation(), OPERATIONS);
    let cooled = prop_oneof![Just(State::Cool), Just(State::Cooling)];
    seeded::check(CASES, (frames, cooled, operations), |(frames, cooled, operations)| {
        let mut sides = Sides::new(frames, cooled);
        operations.into_iter().try_for_each(|operation| sides.apply(operation))
    });
}

/// A cache of blocks that are never dirty.
struct Cache {
    eviction: Eviction,
    ghosts: Ghosts,
    /// Block of each frame, and whether the block is hot.
    blocks: Vec<(u64, bool)>,
    frames: HashMap<u64, u32>,
    looks_max: u64,
}

impl Cache {
    fn new(frames: u32) -> Self {
        Self {
            eviction: Eviction::new(frames),
            ghosts: Ghosts::new(frames as usize),
            blocks: vec![(0, false); frames as usize],
            frames: HashMap::new(),
            looks_max: 0,
        }
    }

    /// Asks for a block; whether it was there.
    fn ask(&mut self, block: u64) -> bool {
        if let Some(frame) = self.frames.get(&block) {
            self.blocks[*frame as usize].1 = true;
            return true;
        }
        let used = self.eviction.used();
        let frame = if used < self.eviction.frames() {
            used
        } else {
            self.evict()
        };
        let is_returned = self.ghosts.recall(block);
        self.blocks[frame as usize] = (block, !is_returned);
        self.frames.insert(block, frame);
        if let Some(cool) = self.eviction.insert(frame, is_returned) {
            self.blocks[cool as usize].1 = false;
        }
        false
    }

    fn evict(&mut self) -> u32 {
        let (blocks, mut looks) = (&mut self.blocks, 0);
        let victim = self.eviction.evict(&mut |frame| {
            looks += 1;
            if std::mem::take(&mut blocks[frame as usize].1) {
                Look::Referenced
            } else {
                Look::Unused
            }
        });
        self.looks_max = self.looks_max.max(looks);
        let Victim { frame, is_remembered } = victim.expect("no frame is busy");
        let block = self.blocks[frame as usize].0;
        self.frames.remove(&block);
        if is_remembered {
            self.ghosts.remember(block);
        }
        frame
    }
}

#[test]
fn the_working_set_survives_a_large_scan() {
    let mut cache = Cache::new(1000);
    let set = || 0..500;
    // Asked for again while other blocks come in: each is seen to be used after it has left the window.
    let mut other = 1 << 32;
    for _ in 0..20 {
        for block in set() {
            cache.ask(block);
            cache.ask(other);
            other += 1;
        }
    }
    (1 << 40..(1 << 40) + 20_000).for_each(|block| assert!(!cache.ask(block)));
    let kept = set().filter(|block| cache.frames.contains_key(block)).count();
    assert!(kept >= 495, "{kept} of 500 blocks outlast a scan of 20,000");
}

#[test]
fn a_block_used_only_while_new_stays_out_of_the_main_queue() {
    let mut cache = Cache::new(1000);
    for block in 0..5000 {
        // Touched a few times in a row.
        (0..5).for_each(|_| _ = cache.ask(block));
    }
    let counts = cache.eviction.take_counts();
    assert_eq!(
        (counts.evictions, counts.looks),
        (4000, 4000),
        "a frame counted as used"
    );
}

/// Brings blocks into all frames; those for which `is_returned` go to the main queue.
fn fill(eviction: &mut Eviction, is_returned: impl Fn(u32) -> bool) {
    for frame in 0..eviction.frames() {
        let _ = eviction.insert(frame, is_returned(frame));
    }
}

#[test]
fn the_cost_of_an_eviction_does_not_depend_on_the_number_of_frames() {
    let mut means = vec![];
    for shift in [14, 16, 18, 21] {
        let frames: u32 = 1 << shift;
        let mut cache = Cache::new(frames);
        // A loop that half fits, uses of which every other one is of a small set.
        let blocks = u64::from(frames) * 2;
        for step in 0..blocks * 2 {
            cache.ask(step % blocks);
            cache.ask((step * 7919) % (blocks / 16));
        }
        let counts = cache.eviction.take_counts();
        assert!(counts.evictions > u64::from(frames));
        assert!(cache.looks_max <= u64::from(WORK_MAX));
        means.push(counts.looks * 1000 / counts.evictions);
    }
    println!("looks for 1000 evictions: {means:?}");
    assert!(means.iter().all(|mean| *mean < 2000), "{means:?}");
    assert!(means.iter().all(|mean| mean.abs_diff(means[0]) < 200), "{means:?}");
}

#[test]
fn evicting_from_hot_frames_takes_the_oldest() {
    for frames in [1 << 14, 1 << 21] {
        let mut eviction = Eviction::new(frames);
        fill(&mut eviction, |_| true);
        let mut is_hot = vec![true; frames as usize];
        for expected in 0..200 {
            let mut looks = 0;
            let victim = eviction.evict(&mut |frame| {
                looks += 1;
                let is_hot = std::mem::take(&mut is_hot[frame as usize]);
                if is_hot { Look::Referenced } else { Look::Unused }
            });
            assert_eq!(
                (victim.map(|victim| victim.frame), looks),
                (Some(expected), LOOKS_MAX + 1)
            );
        }
        eviction.take_counts();
        assert_eq!(eviction.evict(&mut |_| Look::Referenced), None, "used again at once");
        assert_eq!(eviction.take_counts().looks, u64::from(WORK_MAX));
        eviction.check_invariants();
    }
}

/// Models a cache whose threads may use a frame for a while after the frame was made cool.
#[test]
fn frames_cooled_without_a_victim_are_evicted_next() {
    let frames: u32 = 1 << 21;
    let mut eviction = Eviction::new(frames);
    fill(&mut eviction, |_| true);
    // When each was made cool.
    let (mut cooled_at, mut now) = (vec![None; frames as usize], 0);
    let mut victims = vec![];
    for _ in 0..3 {
        loop {
            let victim = eviction.evict(&mut |frame| match &mut cooled_at[frame as usize] {
                Some(at) if *at < now => Look::Unused,
                Some(_) => Look::Busy,
                never => {
                    *never = Some(now);
                    Look::Referenced
                }
            });
            let Some(Victim { frame, .. }) = victim else { break };
            victims.push(frame);
        }
        now += 1;
    }
    assert!(
        victims.iter().copied().eq((0..frames).take(victims.len())),
        "in the order in which they were cooled"
    );
    assert!(victims.len() > 64 * 64, "{} in two rounds", victims.len());
    eviction.check_invariants();
}

/// Frames that were cooled a while ago are all hot again, as are the others.
#[test]
fn a_victim_is_found_among_frames_that_stay_hot() {
    let mut eviction = Eviction::new(1000);
    fill(&mut eviction, |_| true);
    for _ in 0..100 {
        let mut is_cool = vec![false; 1000];
        let victim = eviction.evict(&mut |frame| {
            let was_cool = std::mem::replace(&mut is_cool[frame as usize], true);
            if was_cool { Look::Unused } else { Look::Referenced }
        });
        let Victim { frame, .. } = victim.expect("no frame is busy or used in between");
        let _ = eviction.insert(frame, true);
        eviction.check_invariants();
    }
}

#[test]
fn a_cooled_frame_that_is_used_or_cut_away_is_not_evicted() {
    let mut eviction = Eviction::new(1000);
    fill(&mut eviction, |_| true);
    let mut cooled = vec![false; 1000];
    // All hot, and what is cooled is in use.
    let mut hot = |frame: u32| {
        let was_cooled = std::mem::replace(&mut cooled[frame as usize], true);
        if was_cooled { None } else { Some(Look::Referenced) }
    };
    assert_eq!(eviction.evict(&mut |frame| hot(frame).unwrap_or(Look::Busy)), None);
    // Out of use now, but that the first was used again, and the second cut away.
    let mut again = vec![0, 1];
    let mut look = |frame: u32| {
        hot(frame).unwrap_or_else(|| {
            let used = again.iter().position(|other| *other == frame);
            match used.map(|at| again.remove(at)) {
                None => Look::Unused,
                Some(0) => Look::Referenced,
                Some(_) => Look::Gone,
            }
        })
    };
    for expected in [2, 3] {
        let victim = eviction.evict(&mut look);
        assert_eq!(victim.map(|victim| victim.frame), Some(expected));
        eviction.check_invariants();
    }
    assert_eq!(eviction.used(), 997);
}

#[test]
fn a_block_cut_away_while_it_is_cooled_is_forgotten() {
    let mut eviction = Eviction::new(1);
    fill(&mut eviction, |_| true);
    let mut looks = vec![Look::Gone, Look::Referenced];
    assert_eq!(eviction.evict(&mut |_| looks.pop().expect("it is met twice")), None);
    assert_eq!(eviction.used(), 0);
    eviction.check_invariants();
}

#[test]
fn busy_frames_do_not_hide_an_evictable_frame() {
    let frames = 1 << 14;
    let mut eviction = Eviction::new(frames);
    fill(&mut eviction, |frame| frame % 3 == 0);
    let cool = 12_345;
    let (mut calls, mut looks) = (0, 0);
    let victim = loop {
        calls += 1;
        let found = eviction.evict(&mut |frame| {
            looks += 1;
            if frame == cool { Look::Unused } else { Look::Busy }
        });
        if let Some(victim) = found {
            break victim.frame;
        }
        assert!(calls < frames / 16 + 2, "every call looks at other frames");
    };
    assert_eq!(victim, cool);
    assert!(looks <= calls * 32, "{looks} looks of {calls} calls");
    assert_eq!(eviction.used(), frames - 1);
    eviction.check_invariants();
}

#[test]
fn a_busy_small_queue_leaves_eviction_to_the_main_queue() {
    let mut eviction = Eviction::new(1000);
    fill(&mut eviction, |frame| frame >= 500);
    let victim = eviction.evict(&mut |frame| if frame < 500 { Look::Busy } else { Look::Unused });
    assert_eq!(victim.map(|victim| victim.frame), Some(500));
    assert_eq!(eviction.take_counts().looks, 17);
}

#[test]
fn many_busy_frames_are_passed_for_one_behind_them_but_not_young_ones() {
    for (look, found) in [(Look::Busy, Some(900)), (Look::Young, None)] {
        let mut eviction = Eviction::new(1000);
        fill(&mut eviction, |_| false);
        let mut looked = |frame: u32| if frame < 900 { look } else { Look::Unused };
        assert_eq!(eviction.evict(&mut looked), None);
        let before = eviction.take_counts().looks;
        let victim = eviction.evict_passing(1000, &mut looked);
        assert_eq!(victim.map(|victim| victim.frame), found, "{look:?}");
        let looks = eviction.take_counts().looks;
        assert!(look == Look::Busy || looks <= before, "{looks} looks, {before} before");
        eviction.check_invariants();
    }
}

#[test]
fn the_frame_of_a_block_cut_away_is_reusable() {
    let mut eviction = Eviction::new(100);
    fill(&mut eviction, |_| false);
    assert!(eviction.remove(7) && !eviction.remove(7));
    assert_eq!(eviction.insert(7, true), None);
    let mut order = vec![];
    while let Some(victim) = eviction.evict(&mut |_| Look::Unused) {
        order.push(victim.frame);
    }
    assert_eq!(
        (order.len(), order.iter().filter(|frame| **frame == 7).count()),
        (100, 1)
    );
    assert_eq!(eviction.evict(&mut |_| unreachable!("no frame holds a block")), None);
}

#[test]
#[should_panic(expected = "holds a block already")]
fn a_frame_cannot_hold_two_blocks() {
    let mut eviction = Eviction::new(2);
    fill(&mut eviction, |_| false);
    fill(&mut eviction, |_| false);
}
