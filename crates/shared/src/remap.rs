//! How a core that is at work comes to another hardware queue: the map tells it which, and the queue's door lets it in.
//!
//! Invariants: who enters a door is taken in once by the queue's thread, or dropped, if that has gone. A core looks at the map
//! once for each time that it acts on it: the next look may tell another queue.
//! Cost: a load of a line that is hardly ever written, for the core and for the queue's thread; a lock when someone enters.

use crate::sync::{AtomicUsize, Mutex, Ordering};

/// The hardware queue of each core's requests.
#[derive(Debug)]
pub struct Map(Box<[AtomicUsize]>);

impl Map {
    /// Makes a map that sends the requests of core `n` to `queues[n]`.
    #[must_use]
    pub fn new(queues: &[usize]) -> Self {
        Self(queues.iter().map(|queue| AtomicUsize::new(*queue)).collect())
    }

    /// How many cores there are.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.0.len()
    }

    /// Where `core` is to send its requests.
    #[inline]
    #[must_use]
    pub fn queue(&self, core: usize) -> usize {
        // Relaxed: a number; what the core needs to go there is behind the door's lock.
        self.0[core].load(Ordering::Relaxed)
    }

    /// From the next time that it looks, `core` sends its requests to `queue`.
    pub fn set(&self, core: usize, queue: usize) {
        // Relaxed: as above.
        self.0[core].store(queue, Ordering::Relaxed);
    }
}

/// Where cores come to a hardware queue, with what `T` ties them to it.
#[derive(Debug)]
pub struct Door<T> {
    /// Newcomers not yet taken in; none once the queue has gone.
    waiting: Mutex<Option<Vec<T>>>,
    /// How many ever entered.
    entered: AtomicUsize,
}

impl<T> Default for Door<T> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(Some(Vec::new())),
            entered: AtomicUsize::new(0),
        }
    }
}

impl<T> Door<T> {
    /// Someone comes; is dropped if the queue has gone.
    pub fn enter(&self, newcomer: T) {
        if let Some(waiting) = &mut *self.waiting.lock() {
            waiting.push(newcomer);
            // Relaxed: the lock orders it with the newcomer.
            self.entered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the newcomers since the last look, if there are any. `seen` is how many had entered at that look: 0 at first.
    #[inline]
    pub fn newcomers(&self, seen: &mut usize) -> Option<Vec<T>> {
        // Relaxed: only tells to look; the lock orders.
        if self.entered.load(Ordering::Relaxed) == *seen {
            return None;
        }
        let mut waiting = self.waiting.lock();
        *seen = self.entered.load(Ordering::Relaxed);
        waiting.as_mut().map(std::mem::take)
    }

    /// The queue has gone: who was not taken in is dropped.
    pub fn close(&self) {
        *self.waiting.lock() = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_new_core_is_admitted_once() {
        let (door, mut seen) = (Door::default(), 0);
        assert_eq!(door.newcomers(&mut seen), None);
        door.enter(1);
        door.enter(2);
        assert_eq!(door.newcomers(&mut seen), Some(vec![1, 2]));
        assert_eq!(door.newcomers(&mut seen), None);
    }

    #[test]
    fn no_new_core_is_left_waiting() {
        let (door, tie) = (Door::default(), Arc::new(()));
        door.enter(Arc::clone(&tie));
        door.close();
        door.enter(Arc::clone(&tie));
        assert_eq!(Arc::strong_count(&tie), 1);
        assert_eq!(door.newcomers(&mut 0), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{beside, yield_now};
    use crate::{Receiver, ring};
    use std::sync::Arc;

    /// A core that is mapped elsewhere while it sends loses nothing and sends nothing twice, and each message comes where the
    /// core meant it to.
    #[test]
    fn a_core_may_be_remapped_between_two_messages() {
        loom::model(|| {
            let map = Arc::new(Map::new(&[0]));
            let doors: Arc<[Door<Receiver<2>>; 2]> = Arc::default();
            let core = beside((Arc::clone(&map), Arc::clone(&doors)), move |(map, doors)| {
                let mut outlet = None;
                for number in 0..2 {
                    let queue = map.queue(0);
                    if outlet.as_ref().is_none_or(|(mapped, _)| *mapped != queue) {
                        let (sender, receiver) = ring(2);
                        doors[queue].enter(receiver);
                        outlet = Some((queue, sender));
                    }
                    let (mapped, sender) = outlet.as_mut().expect("it was just made");
                    sender.push([number, *mapped as u64]).expect("there is room for both");
                    sender.publish();
                }
            });
            let ruler = beside(Arc::clone(&map), move |map| map.set(0, 1));
            let (mut links, mut seen, mut came) = ([const { Vec::new() }; 2], [0; 2], Vec::new());
            while came.len() < 2 {
                for queue in 0..2 {
                    links[queue].extend(doors[queue].newcomers(&mut seen[queue]).into_iter().flatten());
                    for link in &mut links[queue] {
                        while let Some([number, meant]) = link.pop() {
                            assert_eq!(meant, queue as u64);
                            came.push(number);
                        }
                    }
                }
                if came.len() < 2 {
                    yield_now();
                }
            }
            core.join().expect("the thread does not panic");
            ruler.join().expect("the thread does not panic");
            came.sort_unstable();
            assert_eq!(came, [0, 1]);
            assert!(links.iter_mut().flatten().all(|link| link.pop().is_none()));
        });
    }

    /// Two cores come while newcomers are taken in: neither is overlooked.
    #[test]
    fn two_new_cores_are_admitted() {
        loom::model(|| {
            let door = Arc::new(Door::default());
            let come = |number: u64| beside(Arc::clone(&door), move |door| door.enter(number));
            let cores = [come(1), come(2)];
            let (mut seen, mut came) = (0, 0);
            came += door.newcomers(&mut seen).into_iter().flatten().sum::<u64>();
            for core in cores {
                core.join().expect("the thread does not panic");
            }
            came += door.newcomers(&mut seen).into_iter().flatten().sum::<u64>();
            assert_eq!(came, 3);
        });
    }

    /// A core that comes while the queue goes is taken in, or sees that the queue is gone: it does not wait for ever.
    #[test]
    fn a_core_may_join_while_its_queue_ends() {
        loom::model(|| {
            let door = Arc::new(Door::default());
            let core = beside(Arc::clone(&door), move |door| {
                let (answers, receiver) = ring::<1>(2);
                door.enter(answers);
                receiver
            });
            let mut seen = 0;
            let taken = door.newcomers(&mut seen);
            door.close();
            drop(taken);
            let receiver = core.join().expect("the thread does not panic");
            assert!(receiver.is_closed());
        });
    }
}
