//! Handlers of the requests about volumes.

use super::Exports;
use crate::control::protocol::{NodeBytes, Outcome, Refusal, VolumeReport};
use homenode::{Error, Placement, Pool, VolumeError, VolumeStatus};
use std::path::Path;
use std::sync::Arc;

pub(super) fn policy(text: &str) -> Result<Placement, Refusal> {
    text.parse()
        .map_err(|problem: homenode::UnknownPlacement| Refusal::new(problem.to_string()))
}

pub(super) fn create(pool: &Pool, name: &str, size_bytes: u64, policy: Placement) -> Result<Outcome, Error> {
    pool.create_volume(name, size_bytes, policy)?;
    tracing::info!("created volume {name} of {size_bytes} bytes, policy {policy}");
    Ok(sized(pool))
}

pub(super) fn list(pool: &Pool, exports: &Arc<Exports>, directory: &Path) -> Outcome {
    let mut devices = exports.devices();
    let report = |status: VolumeStatus| {
        let device = devices.remove(&*status.name);
        report(status, device)
    };
    Outcome::Volumes {
        directory: directory.to_string_lossy().into_owned(),
        volumes: pool.volumes().into_iter().map(report).collect(),
    }
}

pub(super) fn resize(pool: &Pool, name: &str, size_bytes: u64, force: bool) -> Result<Outcome, Error> {
    let volume = pool.volume(name)?;
    if force {
        volume.resize_discarding(size_bytes)?;
    } else {
        volume.resize(size_bytes)?;
    }
    tracing::info!("resized volume {name} to {size_bytes} bytes");
    Ok(sized(pool))
}

pub(super) fn remove(pool: &Pool, name: &str) -> Result<Outcome, Error> {
    pool.volume(name)?.remove()?;
    tracing::info!("removed volume {name}");
    Ok(Outcome::VolumeRemoved)
}

/// Returns the remedy for a refusal; empty if the command has none.
pub(super) fn remedy(error: &Error) -> &'static str {
    match error {
        Error::Volume { source, .. } => match source {
            VolumeError::HoldsData { .. } => "; `--force` discards it",
            VolumeError::Attached => " (`homenode volume detach`)",
            VolumeError::Unknown => "; `homenode volume list` tells which there are",
            _ => "",
        },
        _ => "",
    }
}

fn sized(pool: &Pool) -> Outcome {
    Outcome::VolumeSized {
        capacity_bytes: pool.status().capacity_bytes,
    }
}

fn report(status: VolumeStatus, device: Option<String>) -> VolumeReport {
    let on = |(node, bytes): (homenode::NodeId, u64)| NodeBytes { node: node.0, bytes };
    VolumeReport {
        name: status.name.into(),
        size_bytes: status.size_bytes,
        used_bytes: status.used_bytes,
        nodes: status.map.into_iter().map(on).collect(),
        policy: status.placement.to_string(),
        attached: status.attached,
        device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode::{NodeId, PoolOptions, Size};

    #[test]
    fn shrinking_over_data_needs_force() {
        let options = PoolOptions::new().size_per_node(Size::Bytes(4 << 20)).node(NodeId(0));
        let pool = Pool::create(&options).unwrap();
        create(&pool, "v", 8192, Placement::Local).unwrap();
        pool.volume("v").unwrap().write_all_at(b"data", 4096).unwrap();
        let error = resize(&pool, "v", 4096, false).unwrap_err();
        assert!(error.to_string().contains("4096 bytes of data"), "{error}");
        assert_eq!(remedy(&error), "; `--force` discards it");
        resize(&pool, "v", 4096, true).unwrap();
        assert_eq!(pool.volumes()[0].used_bytes, 0);
        assert_eq!(remedy(&resize(&pool, "v", 1, true).unwrap_err()), "");
        remove(&pool, "v").unwrap();
        assert!(remedy(&remove(&pool, "v").unwrap_err()).contains("homenode volume list"));
    }
}
