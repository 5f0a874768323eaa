//! The machines of tests/topologies: each is read right, and on each the pool does what the paper says.

#[path = "../../../../tests/topologies/facts.rs"]
mod facts;
mod members;
mod monitor;
mod pool;
mod reading;
mod shapes;
