//! The machines of tests/topologies: each is read right, and on each pool and affinity do what their papers say.

mod affinity;
#[path = "../../../../tests/topologies/facts.rs"]
mod facts;
mod members;
mod monitor;
mod pool;
mod reading;
mod shapes;
#[allow(dead_code, reason = "what the tests of policy make of it is more than these need")]
#[path = "../../../policy/tests/affinity/world.rs"]
mod world;
