//! Interface to the driver: the part of the kernel's linux/ublk_cmd.h that is used here.
//!
//! Numbers and offsets are that header's; sizes are checked when this is compiled. Whatever a descriptor holds becomes a request
//! or an error, never a panic: the driver is trusted with memory, but not to be of the version we know.

use homenode_engine::blk::{Durability, Errno, Limits, Request};

/// Commands are numbered as ioctls are: direction, bytes of what they carry, `u`, number.
#[expect(clippy::cast_possible_truncation, reason = "14 bits, as it asserts")]
const fn command(direction: u32, bytes: usize, number: u32) -> u32 {
    assert!(bytes < 1 << 14);
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn reading(number: u32) -> u32 {
    command(2, ControlCommand::BYTES, number)
}

const fn changing(number: u32) -> u32 {
    command(3, ControlCommand::BYTES, number)
}

pub(super) const GET_QUEUE_AFFINITY: u32 = reading(0x01);
pub(super) const GET_DEV_INFO: u32 = reading(0x02);
pub(super) const ADD_DEV: u32 = changing(0x04);
pub(super) const START_DEV: u32 = changing(0x06);
pub(super) const STOP_DEV: u32 = changing(0x07);
pub(super) const SET_PARAMS: u32 = changing(0x08);
pub(super) const GET_PARAMS: u32 = reading(0x09);
pub(super) const START_USER_RECOVERY: u32 = changing(0x10);
pub(super) const END_USER_RECOVERY: u32 = changing(0x11);
pub(super) const GET_FEATURES: u32 = reading(0x13);
/// Does not wait for those who have the device open. Since Linux 6.9.
pub(super) const DEL_DEV_ASYNC: u32 = reading(0x14);

pub(super) const FETCH_REQ: u32 = command(3, IoCommand::BYTES, 0x20);
pub(super) const COMMIT_AND_FETCH_REQ: u32 = command(3, IoCommand::BYTES, 0x21);

/// Commands are numbered so, not as they were at first.
const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// Features that every device is asked for with.
pub(super) const FEATURES: u64 = F_CMD_IOCTL_ENCODE;
/// Features of a lasting device: when its server is gone its requests wait for the next one (`UBLK_F_USER_RECOVERY`), which is given those
/// under way once more (`UBLK_F_USER_RECOVERY_REISSUE`).
pub(super) const LASTING: u64 = 1 << 3 | 1 << 4;
/// `UBLK_F_QUIESCE`, of Linux 6.16: drivers that have it survive a server that ends while it takes a device up. In older ones the next try
/// is refused, or dereferences a null pointer in the kernel.
pub(super) const F_QUIESCE: u64 = 1 << 12;

/// Any number the driver likes.
pub(super) const NEW_DEVICE: u32 = u32::MAX;
/// Queue number of commands that are for no queue.
const NO_QUEUE: u16 = u16::MAX;

/// A device without a disk: not started, stopped, or its server is gone.
pub(super) const STATE_DEAD: u16 = 0;
/// A disk whose server is there, or has ended a moment ago.
pub(super) const STATE_LIVE: u16 = 1;
/// A disk whose requests wait for the next server.
pub(super) const STATE_QUIESCED: u16 = 2;

/// The most requests that a queue may have in the driver's eyes. In the device's file there is room for the descriptors of as many
/// for each queue, in whole pages.
pub(super) const DEPTH_LIMIT: usize = 4096;

const SECTOR_SHIFT: u32 = 9;
/// Most bytes that are discarded or zeroed at once.
const DISCARD_BYTES_MAX: u64 = 1 << 30;
/// Blocks as filesystems should take them.
const PHYSICAL_BLOCK_BYTES: u32 = 4096;

/// `struct ublksrv_ctrl_cmd`, as it travels in an entry of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) address: u64,
    pub(super) bytes: u16,
    pub(super) data: u64,
}

impl ControlCommand {
    const BYTES: usize = 32;

    #[expect(clippy::host_endian_bytes, reason = "the kernel is of this machine")]
    pub(super) fn encode(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.bytes.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_io_cmd`: a tag is free for a request, or its request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    pub(super) result: i32,
    /// Where the tag's data is.
    pub(super) address: u64,
}

impl IoCommand {
    const BYTES: usize = 16;

    #[expect(clippy::host_endian_bytes, reason = "the kernel is of this machine")]
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) zero: u16,
    pub(super) io_bytes_max: u32,
    pub(super) device: u32,
    pub(super) server: i32,
    pub(super) zero_too: u32,
    pub(super) features: u64,
    /// The driver keeps it and knows nothing of it: whose the device is.
    pub(super) mark: u64,
    pub(super) owner: [u32; 2],
    pub(super) reserved: [u64; 2],
}
const _: () = assert!(size_of::<DeviceInfo>() == 64);

/// `struct ublk_params` as far as it is set here: its first two parts. What comes behind has its own bits in `types`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    bytes: u32,
    types: u32,
    attributes: u32,
    logical_block_shift: u8,
    physical_block_shift: u8,
    io_optimum_shift: u8,
    io_least_shift: u8,
    io_sectors_max: u32,
    chunk_sectors: u32,
    device_sectors: u64,
    boundary_mask: u64,
    discard_alignment: u32,
    discard_granularity: u32,
    discard_sectors_max: u32,
    zero_sectors_max: u32,
    discard_segments_max: u16,
    zero: u16,
    /// The kernel's next part begins here.
    padding: u32,
}
const _: () = assert!(size_of::<Parameters>() == 64);

impl Parameters {
    const BASIC: u32 = 1 << 0;
    const DISCARD: u32 = 1 << 1;
    const VOLATILE_CACHE: u32 = 1 << 2;
    const FORCED_WRITES: u32 = 1 << 3;

    /// A device of these limits that is asked for at most `io_bytes_max` bytes of data at once.
    pub(super) fn of(limits: &Limits, io_bytes_max: u32) -> Self {
        let physical = limits.block_bytes.max(PHYSICAL_BLOCK_BYTES);
        let shift = |bytes: u32| u8::try_from(bytes.trailing_zeros()).expect("trailing_zeros of a u32 is at most 32");
        let whole_blocks = DISCARD_BYTES_MAX.min(limits.device_bytes) >> SECTOR_SHIFT;
        let at_once = u32::try_from(whole_blocks).expect("the sectors of 1 GiB fit 32 bits");
        let if_any = |can, value: u32| if can { value } else { 0 };
        let can_discard = limits.can_discard;
        Self {
            bytes: u32::try_from(size_of::<Self>()).expect("the structure has 64 bytes"),
            types: Self::BASIC | if_any(can_discard || limits.can_zero, Self::DISCARD),
            attributes: if_any(limits.has_cache, Self::VOLATILE_CACHE)
                | if_any(limits.has_cache && limits.can_force, Self::FORCED_WRITES),
            logical_block_shift: shift(limits.block_bytes),
            physical_block_shift: shift(physical),
            io_optimum_shift: shift(physical),
            io_least_shift: shift(physical),
            io_sectors_max: io_bytes_max >> SECTOR_SHIFT,
            device_sectors: limits.device_bytes >> SECTOR_SHIFT,
            discard_granularity: physical,
            discard_sectors_max: if_any(can_discard, at_once),
            discard_segments_max: u16::from(can_discard),
            zero_sectors_max: if_any(limits.can_zero, at_once),
            ..Self::default()
        }
    }

    /// Room for the parameters that a device has.
    pub(super) fn room() -> Self {
        Self {
            bytes: u32::try_from(size_of::<Self>()).expect("the structure has 64 bytes"),
            ..Self::default()
        }
    }

    pub(super) fn device_bytes(&self) -> u64 {
        self.device_sectors << SECTOR_SHIFT
    }
}

/// `struct ublksrv_io_desc`: what is asked for by a tag.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoDescriptor {
    /// The operation in the lowest byte.
    pub(super) operation_flags: u32,
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
    pub(super) address: u64,
}
const _: () = assert!(size_of::<IoDescriptor>() == 24);

impl IoDescriptor {
    const READ: u32 = 0;
    const WRITE: u32 = 1;
    const FLUSH: u32 = 2;
    const DISCARD: u32 = 3;
    const WRITE_ZEROES: u32 = 5;
    const FORCED: u32 = 1 << 13;

    /// The request for the block layer, of data at `buffer` where there are `io_bytes_max` bytes.
    pub(super) fn request(&self, buffer: u64, io_bytes_max: u32) -> Result<Request, Errno> {
        const EINVAL: Errno = Errno(libc::EINVAL);
        let operation = self.operation_flags & 0xff;
        if operation == Self::FLUSH {
            return Ok(Request::flush());
        }
        let bytes = self.sectors.checked_mul(1 << SECTOR_SHIFT).ok_or(EINVAL)?;
        let offset = self.start_sector.checked_mul(1 << SECTOR_SHIFT).ok_or(EINVAL)?;
        match operation {
            // Else it would reach the memory of the next tag.
            Self::READ | Self::WRITE if bytes > io_bytes_max => Err(EINVAL),
            Self::READ => Ok(Request::read(offset, bytes, buffer)),
            Self::WRITE => Ok(Request::write(offset, bytes, buffer).durability(self.durability())),
            Self::DISCARD => Ok(Request::discard(offset, bytes)),
            Self::WRITE_ZEROES => Ok(Request::write_zeroes(offset, bytes)),
            _ => Err(Errno::NOT_SUPPORTED),
        }
    }

    fn durability(&self) -> Durability {
        if self.operation_flags & Self::FORCED == 0 {
            Durability::Later
        } else {
            Durability::Forced
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_engine::blk::Operation;

    #[test]
    fn command_numbers_match_the_kernel_header() {
        assert_eq!(GET_QUEUE_AFFINITY, 0x8020_7501);
        assert_eq!(GET_DEV_INFO, 0x8020_7502);
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!((START_DEV, STOP_DEV), (0xc020_7506, 0xc020_7507));
        assert_eq!((SET_PARAMS, DEL_DEV_ASYNC), (0xc020_7508, 0x8020_7514));
        assert_eq!((GET_PARAMS, GET_FEATURES), (0x8020_7509, 0x8020_7513));
        assert_eq!((START_USER_RECOVERY, END_USER_RECOVERY), (0xc020_7510, 0xc020_7511));
        assert_eq!((FETCH_REQ, COMMIT_AND_FETCH_REQ), (0xc010_7520, 0xc010_7521));
    }

    #[test]
    fn field_offsets_match_the_kernels() {
        let command = ControlCommand {
            device: 0x0403_0201,
            address: 0x1817_1615_1413_1211,
            bytes: 0x0807,
            data: 0x2827_2625_2423_2221,
        };
        let mut expected = [0; 80];
        expected[..4].copy_from_slice(&[1, 2, 3, 4]);
        expected[4..8].copy_from_slice(&[0xff, 0xff, 7, 8]);
        expected[8..24].copy_from_slice(&[
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
        ]);
        assert_eq!(command.encode(), expected);
        let command = IoCommand {
            queue: 0x0201,
            tag: 0x0403,
            result: -28,
            address: 0x1817_1615_1413_1211,
        };
        assert_eq!(
            command.encode(),
            [
                1, 2, 3, 4, 0xe4, 0xff, 0xff, 0xff, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18
            ]
        );
        assert_eq!(std::mem::offset_of!(DeviceInfo, mark), 32);
        assert_eq!(std::mem::offset_of!(Parameters, device_sectors), 24);
        assert_eq!(std::mem::offset_of!(Parameters, discard_segments_max), 56);
    }

    #[test]
    fn parameters_follow_the_drivers_limits() {
        let plain = Limits::of_bytes(1 << 20);
        let parameters = Parameters::of(&plain, 512 << 10);
        assert_eq!((parameters.types, parameters.attributes), (Parameters::BASIC, 0));
        assert_eq!((parameters.device_sectors, parameters.io_sectors_max), (2048, 1024));
        assert_eq!(
            (parameters.logical_block_shift, parameters.physical_block_shift),
            (9, 12)
        );
        let able = Limits {
            device_bytes: 1 << 40,
            has_cache: true,
            can_force: true,
            can_discard: true,
            can_zero: true,
            block_bytes: 4096,
            ..plain
        };
        let parameters = Parameters::of(&able, 128 << 10);
        assert_eq!(parameters.types, Parameters::BASIC | Parameters::DISCARD);
        assert_eq!(
            parameters.attributes,
            Parameters::VOLATILE_CACHE | Parameters::FORCED_WRITES
        );
        assert_eq!(
            (parameters.discard_sectors_max, parameters.zero_sectors_max),
            (1 << 21, 1 << 21)
        );
        assert_eq!(
            (parameters.discard_segments_max, parameters.logical_block_shift),
            (1, 12)
        );
    }

    fn descriptor(operation_flags: u32, sectors: u32, start_sector: u64) -> IoDescriptor {
        IoDescriptor {
            operation_flags,
            sectors,
            start_sector,
            address: 0,
        }
    }

    #[test]
    fn descriptors_become_requests() {
        let request = |operation_flags| descriptor(operation_flags, 8, 3).request(64, 4096);
        assert_eq!(request(0), Ok(Request::read(1536, 4096, 64)));
        assert_eq!(request(1 | 1 << 8 | 1 << 11), Ok(Request::write(1536, 4096, 64)));
        let forced = Request::write(1536, 4096, 64).durability(Durability::Forced);
        assert_eq!(request(1 | 1 << 13), Ok(forced));
        assert_eq!(request(2), Ok(Request::flush()));
        assert_eq!(request(3 | 1 << 13), Ok(Request::discard(1536, 4096)));
        assert_eq!(request(5 | 1 << 15), Ok(Request::write_zeroes(1536, 4096)));
    }

    #[test]
    fn malformed_descriptors_are_errors() {
        let invalid = Err(Errno(libc::EINVAL));
        // More than its buffer has.
        assert_eq!(descriptor(0, 9, 0).request(0, 4096), invalid);
        assert_eq!(descriptor(1, 9, 0).request(0, 4096), invalid);
        assert_eq!(descriptor(3, u32::MAX, 0).request(0, 4096), invalid);
        assert_eq!(descriptor(0, 8, u64::MAX).request(0, 4096), invalid);
        for operation in [4, 6, 10, 15, 18, 255] {
            let request = descriptor(operation, 8, 0).request(0, 4096);
            assert_eq!(request, Err(Errno::NOT_SUPPORTED), "operation {operation}");
        }
    }

    #[test]
    fn no_descriptor_reaches_beyond_its_buffer() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..100_000 {
            let few = random.bool();
            let sectors = if few { random.u32(..64) } else { random.u32(..) };
            let found =
                descriptor(random.u32(..), sectors, random.u64(..) >> random.u32(..64)).request(1 << 20, 16 << 10);
            if let Ok(request) = found
                && matches!(request.operation, Operation::Read | Operation::Write)
            {
                assert!(request.buffer == 1 << 20 && request.bytes <= 16 << 10, "{request:?}");
            }
        }
    }
}
