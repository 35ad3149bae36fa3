//! Compiles shaders for AMD cards on a machine without one, for tests: Mesa's RADV has a null
//! device for any card that `RADV_FORCE_FAMILY` names. wgpu cannot open it, because it has no
//! memory, so it is opened with ash. The SPIR-V is what wgpu makes of the same source.
#![allow(unsafe_code, reason = "ash has no safe interface")]

use std::collections::BTreeMap;
use std::ffi::CStr;

use ash::{khr::pipeline_executable_properties as executables, vk};
use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::facts::IMMEDIATES;
use crate::shader::Source;

/// A null device of RADV.
pub(crate) struct NullDevice {
    /// Keeps the Vulkan loader in memory.
    _entry: ash::Entry,
    instance: ash::Instance,
    device: ash::Device,
    executables: executables::Device,
    name: String,
}

/// What the compiler made of a shader.
#[derive(Debug)]
pub(crate) struct Code {
    /// The compiler's statistics by their names, such as `VGPRs`.
    statistics: BTreeMap<String, u64>,
    /// The instructions, one per line.
    pub(crate) assembly: String,
}

impl Code {
    /// A statistic; `None` if this version of Mesa does not have it.
    pub(crate) fn statistic(&self, name: &str) -> Option<u64> {
        self.statistics.get(name).copied()
    }

    /// How many instructions contain `part`.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.assembly.lines().filter(|line| line.contains(part)).count()
    }
}

impl NullDevice {
    /// Opens the null device; `None` without RADV, or if it found no family of the name in
    /// `RADV_FORCE_FAMILY`.
    pub(crate) fn open() -> Option<NullDevice> {
        // SAFETY: the system's Vulkan loader is a library that does nothing when it is loaded.
        let entry = unsafe { ash::Entry::load() }.ok()?;
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&app);
        // SAFETY: `info` and what it points to live until the call returns. The same holds for the
        // structures of all calls below.
        let instance = unsafe { entry.create_instance(&info, None) }.ok()?;
        // SAFETY: as above.
        let found = unsafe { instance.enumerate_physical_devices() }.ok()?;
        let (physical, name) = found.into_iter().find_map(|physical| {
            // SAFETY: the physical device is one of this instance.
            let properties = unsafe { instance.get_physical_device_properties(physical) };
            let name = properties.device_name_as_c_str().ok()?.to_string_lossy().into_owned();
            name.contains("RADV").then_some((physical, name))
        })?;
        let queue = vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0]);
        let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
            .pipeline_executable_info(true);
        let mut version_13 = vk::PhysicalDeviceVulkan13Features::default()
            .shader_integer_dot_product(true)
            .subgroup_size_control(true);
        let extensions = [executables::NAME.as_ptr()];
        let queues = [queue];
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .push_next(&mut statistics)
            .push_next(&mut version_13);
        // SAFETY: as above; the device is destroyed before its instance.
        let device = unsafe { instance.create_device(physical, &info, None) }.ok()?;
        let executables = executables::Device::new(&instance, &device);
        Some(NullDevice { _entry: entry, instance, device, executables, name })
    }

    /// The name of the card, as RADV reports it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Compiles a shader.
    ///
    /// # Errors
    /// The message of the stage that rejected it.
    pub(crate) fn compile(&self, source: &Source) -> Result<Code, String> {
        let words = spirv(&source.text(false))?;
        let device = &self.device;
        let failed = |error: vk::Result| format!("{}: {error}", source.name());
        let bindings: Vec<_> = (0..source.bindings().len() as u32)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: every handle below belongs to this device, is destroyed once, and after what was
        // made from it; nothing runs on the device.
        unsafe {
            let sets = [device.create_descriptor_set_layout(&info, None).map_err(failed)?];
            let ranges = [vk::PushConstantRange::default()
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
                .size(IMMEDIATES)];
            let info = vk::PipelineLayoutCreateInfo::default()
                .set_layouts(&sets)
                .push_constant_ranges(&ranges);
            let layout = device.create_pipeline_layout(&info, None).map_err(failed)?;
            let info = vk::ShaderModuleCreateInfo::default().code(&words);
            let module = device.create_shader_module(&info, None).map_err(failed)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
            let info =
                vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout);
            let pipelines = device
                .create_compute_pipelines(vk::PipelineCache::null(), &[info], None)
                .map_err(|(_, error)| failed(error))?;
            let code = self.code_of(pipelines[0]).map_err(failed);
            device.destroy_pipeline(pipelines[0], None);
            device.destroy_shader_module(module, None);
            device.destroy_pipeline_layout(layout, None);
            device.destroy_descriptor_set_layout(sets[0], None);
            code
        }
    }

    /// # Safety
    /// The pipeline is one of this device, made with the flags that capture its code.
    unsafe fn code_of(&self, pipeline: vk::Pipeline) -> Result<Code, vk::Result> {
        let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        // SAFETY: the caller's promise; the pipeline of one compute shader has one executable.
        let found = unsafe { self.executables.get_pipeline_executable_statistics(&info) }?;
        let is_whole = |statistic: &&vk::PipelineExecutableStatisticKHR<'_>| {
            statistic.format == vk::PipelineExecutableStatisticFormatKHR::UINT64
        };
        let statistics = found.iter().filter(is_whole).filter_map(|statistic| {
            let name = statistic.name_as_c_str().ok()?.to_string_lossy().into_owned();
            // SAFETY: the format says that this field is set.
            Some((name, unsafe { statistic.value.u64 }))
        });
        let statistics = statistics.collect();
        // SAFETY: the caller's promise.
        let assembly = unsafe { self.assembly_of(&info) }?;
        Ok(Code { statistics, assembly })
    }

    /// # Safety
    /// As for [`NullDevice::code_of`].
    unsafe fn assembly_of(
        &self,
        info: &vk::PipelineExecutableInfoKHR<'_>,
    ) -> Result<String, vk::Result> {
        let get = self.executables.fp().get_pipeline_executable_internal_representations_khr;
        let (device, mut n) = (self.device.handle(), 0);
        // SAFETY: without a list, the call sets the number of representations.
        unsafe { get(device, info, &mut n, std::ptr::null_mut()) }.result()?;
        let mut found =
            vec![vk::PipelineExecutableInternalRepresentationKHR::default(); n as usize];
        // SAFETY: the list has `n` entries; without data, the call sets their sizes.
        unsafe { get(device, info, &mut n, found.as_mut_ptr()) }.result()?;
        let mut texts: Vec<Vec<u8>> = found.iter().map(|part| vec![0; part.data_size]).collect();
        for (part, text) in found.iter_mut().zip(&mut texts) {
            part.p_data = text.as_mut_ptr().cast();
        }
        // SAFETY: each entry points to as many bytes as its size says.
        unsafe { get(device, info, &mut n, found.as_mut_ptr()) }.result()?;
        let assembly = found.iter().zip(&texts).find(|(part, _)| {
            part.name_as_c_str().is_ok_and(|name| name.to_bytes().starts_with(b"Assembly"))
        });
        let text = assembly.and_then(|(_, text)| CStr::from_bytes_until_nul(text).ok());
        Ok(text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default())
    }
}

impl Drop for NullDevice {
    fn drop(&mut self) {
        // SAFETY: everything that was made from the device is destroyed already.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// The SPIR-V that wgpu passes to a driver of Vulkan 1.3 with robust buffer access.
fn spirv(text: &str) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let capabilities =
        Capabilities::IMMEDIATES | Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|error| error.emit_to_string(text))?;
    let options = spv::Options {
        lang_version: (1, 6),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: true,
        ..spv::Options::default()
    };
    let pipeline = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".to_owned(),
    };
    spv::write_vec(&module, &info, &options, Some(&pipeline)).map_err(|error| error.to_string())
}
