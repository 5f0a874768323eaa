//! Volumes as text and as JSON.

use super::Listed;
use crate::control::protocol::{NodeBytes, OUTPUT_VERSION, VolumeReport};
use crate::mountinfo::{Device, MountEntry, shown};
use crate::status::{mount_points, size, sockets};
use serde::Serialize;
use std::fmt::{self, Write};
use std::path::Path;

#[derive(Debug, Serialize)]
pub(super) struct Json {
    output_version: u32,
    volumes: Vec<InPool>,
    /// Where mounts lie whose servers were killed.
    dead: Vec<String>,
    /// Sockets of servers that did not answer.
    silent: Vec<String>,
}

#[derive(Debug, Serialize)]
struct InPool {
    /// Where its pool is mounted.
    pool: String,
    #[serde(flatten)]
    volume: VolumeReport,
}

pub(super) fn json(volumes: Vec<Listed>, dead: &[MountEntry], silent: &[Device]) -> Json {
    let in_pool = |Listed { pool, volume }| InPool { pool, volume };
    Json {
        output_version: OUTPUT_VERSION,
        volumes: volumes.into_iter().map(in_pool).collect(),
        dead: mount_points(dead),
        silent: sockets(silent),
    }
}

pub(super) fn text(volumes: &[Listed]) -> String {
    let mut text = String::new();
    write(&mut text, volumes).expect("writing to a string cannot fail");
    text
}

fn write(text: &mut String, volumes: &[Listed]) -> fmt::Result {
    let name = |listed: &Listed| shown(&Path::new(&listed.pool).join(&listed.volume.name));
    let width = volumes
        .iter()
        .map(|one| name(one).chars().count())
        .max()
        .unwrap_or(0)
        .max(6);
    writeln!(
        text,
        "{:<width$} {:>11} {:>11}  {:<10} {:<13}  where it lies",
        "volume", "size", "used", "policy", "attached"
    )?;
    for one in volumes {
        let (size, used) = (size(one.volume.size_bytes), size(one.volume.used_bytes));
        let (policy, places) = (&one.volume.policy, places(&one.volume.nodes, one.volume.used_bytes));
        let attached = match &one.volume.device {
            Some(device) => device,
            None if one.volume.attached => "yes",
            None => "no",
        };
        writeln!(
            text,
            "{:<width$} {size:>11} {used:>11}  {policy:<10} {attached:<13}  {places}",
            name(one)
        )?;
    }
    Ok(())
}

/// `node 0 4.00 MiB, node 1 2.00 MiB, 1.00 MiB not looked at`
fn places(nodes: &[NodeBytes], used_bytes: u64) -> String {
    let place = |on: &NodeBytes| format!("node {} {}", on.node, size(on.bytes));
    let found: u64 = nodes.iter().map(|on| on.bytes).sum();
    let rest = (found < used_bytes).then(|| format!("{} not looked at", size(used_bytes - found)));
    let places: Vec<String> = nodes.iter().map(place).chain(rest).collect();
    match &places[..] {
        [] => "nowhere yet".to_owned(),
        places => places.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_volume() {
        let volume = |name: &str, nodes: &[(u16, u64)]| Listed {
            pool: "/srv/pool".to_owned(),
            volume: VolumeReport {
                name: name.to_owned(),
                size_bytes: 1 << 40,
                used_bytes: nodes.iter().map(|(_, bytes)| bytes).sum(),
                nodes: nodes.iter().map(|&(node, bytes)| NodeBytes { node, bytes }).collect(),
                policy: "local".to_owned(),
                attached: nodes.is_empty(),
                device: nodes.is_empty().then(|| "/dev/ublkb12".to_owned()),
            },
        };
        let text = text(&[volume("disk", &[(0, 4096), (3, 8192)]), volume("d", &[])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "volume                size        used  policy     attached       where it lies",
                "/srv/pool/disk    1.00 TiB   12.00 KiB  local      no             node 0 4.00 KiB, node 3 8.00 KiB",
                "/srv/pool/d       1.00 TiB         0 B  local      /dev/ublkb12   nowhere yet",
            ]
        );
    }
}
