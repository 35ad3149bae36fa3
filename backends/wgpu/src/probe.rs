//! Tests a behaviour that no driver guarantees: that subgroups consist of consecutive invocations
//! of a workgroup.

use hal::Result;

use crate::copies::{request_mapping, wait_for_mapping};
use crate::gpu::Gpu;
use crate::shader::Source;

/// The subgroup size for sums: the first of `sizes` with which subgroups consist of consecutive
/// invocations; `None` if none does.
///
/// # Errors
/// A lost device, or a shader that the driver rejects.
pub(crate) fn subgroup_size(gpu: &Gpu, sizes: &[u32]) -> Result<Option<u32>> {
    let row = gpu.facts.tuning.row;
    for size in sizes.iter().map(|&size| size.min(row)) {
        if size > 1 && size.is_power_of_two() && is_consecutive(gpu, row, size)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// Whether each `size` consecutive invocations of a workgroup of `row` belong to one subgroup.
fn is_consecutive(gpu: &Gpu, row: u32, size: u32) -> Result<bool> {
    let pipeline = gpu.pipeline(&Source::new("probe").set("ROW", row).set("NEAR", size), false)?;
    let bytes = 4 * u64::from(row);
    let y = gpu.storage("probe", bytes)?;
    let back = gpu.readback("probe", bytes)?;
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("probe"),
        layout: &pipeline.layout,
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: y.as_entire_binding() }],
    });
    let mut encoder = gpu.encoder("probe");
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }
    encoder.copy_buffer_to_buffer(&y, 0, &back, 0, bytes);
    let submission = gpu.submit(Some(encoder.finish()));
    let mapped = request_mapping(&back);
    let view = wait_for_mapping(gpu, &back, &submission, &mapped)?;
    Ok(view.chunks_exact(4).all(|word| word == 1u32.to_le_bytes()))
}
