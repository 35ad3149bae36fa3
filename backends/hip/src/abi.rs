//! Constants of HIP's headers. They have the same values in ROCm 5 to 7.
//!
//! The crate `hip-sys` has them too, but its build script needs ROCm wherever this repository's
//! `.cargo/config.toml` is not read, as in `cargo install --git`. So it is a dependency of the
//! tests alone, which compare.

use std::ffi::{c_int, c_uint};

/// `hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent`.
pub(crate) const HOST_FLAGS: c_uint = 0x1 | 0x2 | 0x4000_0000;

/// `hipErrorNoDevice`.
pub(crate) const NO_DEVICE: c_int = 100;
/// `hipErrorInvalidDevice`.
pub(crate) const INVALID_DEVICE: c_int = 101;

/// Byte offset of the architecture's name in a device's properties up to ROCm 5
/// (`hipDeviceProp_t`).
pub(crate) const ARCH_BEFORE_6: usize = 396;
/// The same from ROCm 6 on (`hipDeviceProp_tR0600`).
pub(crate) const ARCH: usize = 1160;

/// `hipDeviceAttribute_t`, as far as it is queried.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Attribute {
    Integrated = 16,
    KernelExecTimeout = 18,
    MultiprocessorCount = 63,
    MaxSharedMemoryPerBlock = 74,
    WarpSize = 87,
    PhysicalMultiProcessorCount = 10015,
    /// Needs ROCm 5.4.
    WallClockRate = 10017,
}

#[cfg(test)]
mod tests {
    use hip_sys::hiprt::{self, hipDeviceAttribute_t as Theirs, hipError_t};

    use super::*;

    #[test]
    fn the_values_are_those_of_hip_sys() {
        let flags = [
            hiprt::hipHostMallocPortable,
            hiprt::hipHostMallocMapped,
            hiprt::hipHostMallocCoherent,
        ];
        assert_eq!(HOST_FLAGS, flags.into_iter().sum());
        assert_eq!(NO_DEVICE, hipError_t::hipErrorNoDevice as c_int);
        assert_eq!(INVALID_DEVICE, hipError_t::hipErrorInvalidDevice as c_int);
        assert_eq!(ARCH_BEFORE_6, std::mem::offset_of!(hiprt::hipDeviceProp_t, gcnArchName));
        let attributes = [
            (Attribute::Integrated, Theirs::hipDeviceAttributeIntegrated),
            (Attribute::KernelExecTimeout, Theirs::hipDeviceAttributeKernelExecTimeout),
            (Attribute::MultiprocessorCount, Theirs::hipDeviceAttributeMultiprocessorCount),
            (Attribute::MaxSharedMemoryPerBlock, Theirs::hipDeviceAttributeMaxSharedMemoryPerBlock),
            (Attribute::WarpSize, Theirs::hipDeviceAttributeWarpSize),
            (
                Attribute::PhysicalMultiProcessorCount,
                Theirs::hipDeviceAttributePhysicalMultiProcessorCount,
            ),
            (Attribute::WallClockRate, Theirs::hipDeviceAttributeWallClockRate),
        ];
        for (ours, theirs) in attributes {
            assert_eq!(ours as c_int, theirs as c_int, "{ours:?}");
        }
    }
}
