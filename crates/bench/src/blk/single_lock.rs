//! The paper's baseline: one request queue behind one lock (its section 2: every insertion, every removal and every
//! completion takes it). The same layer otherwise, with the same features and the same driver. Whoever waits for the lock spins, as in
//! the kernel.

use super::contestants::{Case, Target, device};
use super::load::{Load, Places, together};
use crate::error::Error;
use homenode::blk::{Core, Driver, DriverQueue, Request, StampClock, Timing};
use parking_lot::{Mutex, MutexGuard};
use std::hint::spin_loop;

/// The queue, and what is finished of each thread's.
struct Queue<Q: DriverQueue, T: Timing> {
    core: Core<Q, T>,
    done: Vec<u64>,
}

/// M IOPS of all cores.
pub(super) fn run(case: &Case, target: &Target, cpus: &[usize], divisor: u64) -> Result<f64, Error> {
    match target {
        Target::Noop(null) => run_on(case, null, cpus, divisor),
        Target::Ram(ram) => run_on(case, ram, cpus, divisor),
        Target::Volume(volume) => run_on(case, volume, cpus, divisor),
    }
}

fn run_on<D: Driver>(case: &Case, driver: &D, cpus: &[usize], divisor: u64) -> Result<f64, Error> {
    let mut options = case.options();
    // As many as all cores have under way.
    options.tags *= u16::try_from(cpus.len()).unwrap_or(u16::MAX);
    let device = device(driver, 1, options)?;
    if case.is_stamped {
        let core = device.join_timed(0, StampClock::new()).expect("the core joins once");
        share(case, core, cpus, divisor)
    } else {
        share(case, device.join(0).expect("the core joins once"), cpus, divisor)
    }
}

fn share<Q, T>(case: &Case, core: Core<Q, T>, cpus: &[usize], divisor: u64) -> Result<f64, Error>
where
    Q: DriverQueue,
    T: Timing + Send,
{
    let queue = Mutex::new(Queue {
        core,
        done: vec![0; cpus.len()],
    });
    // A tenth for more than one core: it is so much slower.
    let mut load = case.load(divisor);
    load.requests = (load.requests / if cpus.len() > 1 { 10 } else { 1 }).max(1);
    together(cpus, |index| {
        let queue = &queue;
        move |clock| play(queue, clock, &load, index)
    })
}

fn play<Q: DriverQueue, T: Timing>(queue: &Mutex<Queue<Q, T>>, clock: StampClock, load: &Load, index: usize) -> u64 {
    let device_bytes = lock(queue).core.device().limits().device_bytes;
    let mut places = Places::new(device_bytes, load.bytes, index as u64);
    // Both devices finish requests in their order, so that the oldest buffer is the next one that is free.
    let mut buffers = load.buffers(index as u64).into_iter().cycle();
    let (mut submitted, mut done) = (0, 0);
    while done < load.requests {
        while submitted < load.requests && submitted - done < load.depth as u64 {
            let buffer = buffers.next().expect("the iterator cycles");
            let request = Request::read(places.next(), load.bytes, buffer).user(index as u64);
            lock(queue)
                .core
                .submit(request)
                .expect("there is a tag for each request in flight");
            submitted += 1;
        }
        let Queue { core, done: finished } = &mut *lock(queue);
        core.run(clock, |completion| {
            let of_thread = usize::try_from(completion.user).expect("the number of a thread");
            finished[of_thread] += 1;
        });
        done = finished[index];
    }
    done
}

/// A mutex that nobody sleeps for. Whoever waits only reads it, as in the kernel, so that its owner keeps the line.
fn lock<T>(queue: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        if let Some(guard) = queue.try_lock() {
            return guard;
        }
        while queue.is_locked() {
            spin_loop();
        }
    }
}
