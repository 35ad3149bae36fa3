//! State of an open device that buffers, programs and queues share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use hal::{Bytes, Result};

use crate::avoided::{PlainShaders, PlantedFault};
use crate::error::{Health, driver, one_line, try_create};
use crate::facts::{Facts, IMMEDIATES};
use crate::native::PipelineCacheFile;
use crate::shader::Source;

/// How long a wait blocks in the driver between checks for a lost device.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Counts of work submitted to a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Submissions, including those of copies and pending writes.
    pub submissions: u64,
    /// Dispatches of programs, without those of copies.
    pub dispatches: u64,
    /// Waits of the host for a submission that was not known to be done.
    pub waits: u64,
    /// Copies between host and device: uploads, and copies to host memory. Without those of
    /// hand-offs.
    pub copies: u64,
    /// Submissions of programs that were encoded before the replay began, while the device worked.
    pub encoded_ahead: u64,
}

#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) facts: Facts,
    pub(crate) health: Arc<Health>,
    /// Shaders that compute wrongly with subgroups.
    pub(crate) without_subgroups: PlainShaders,
    /// A fault for tests.
    pub(crate) planted: PlantedFault,
    /// A buffer that is bound in place of a missing operand.
    pub(crate) dummy: wgpu::Buffer,
    /// Code tables of the formats ([`layout::tables`]).
    pub(crate) tables: wgpu::Buffer,
    pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
    /// Cache file of compiled shaders.
    pipeline_cache: Option<PipelineCacheFile>,
    /// Held while a thread polls the driver or submits: wgpu panics if a poll whose time ran out
    /// sees the submission retired by another thread (`Device::maintain` of wgpu-core 30).
    polling: Mutex<()>,
    submissions: AtomicU64,
    dispatches: AtomicU64,
    waits: AtomicU64,
    copies: AtomicU64,
    encoded_ahead: AtomicU64,
    /// Number of the last submission that is known to be done.
    done: AtomicU64,
}

/// A submission. The queue runs submissions in the order of their numbers, which begin at 1.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    index: wgpu::SubmissionIndex,
    number: u64,
}

#[derive(Debug)]
pub(crate) struct Pipeline {
    /// The name of the shader's file.
    pub(crate) name: &'static str,
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

impl Gpu {
    pub(crate) fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        facts: Facts,
        health: Arc<Health>,
        pipeline_cache: Option<PipelineCacheFile>,
    ) -> Result<Gpu> {
        let dummy = storage(&device, &health, "dummy", 256)?;
        let words = layout::tables();
        let tables = storage(&device, &health, "tables", 4 * words.len() as u64)?;
        queue.write_buffer(&tables, 0, bytemuck::cast_slice(&words));
        let pipelines = Mutex::default();
        let (submissions, dispatches, waits) = Default::default();
        let (copies, encoded_ahead, done) = Default::default();
        Ok(Gpu {
            device,
            queue,
            facts,
            health,
            without_subgroups: PlainShaders::default(),
            planted: PlantedFault::default(),
            dummy,
            tables,
            pipelines,
            pipeline_cache,
            polling: Mutex::default(),
            submissions,
            dispatches,
            waits,
            copies,
            encoded_ahead,
            done,
        })
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn storage(&self, label: &str, size: u64) -> Result<wgpu::Buffer> {
        storage(&self.device, &self.health, label, size)
    }

    /// Allocates host memory that the device copies to.
    ///
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn readback(&self, label: &str, size: u64) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        buffer(&self.device, &self.health, label, size, usage)
    }

    /// Allocates device memory to which timestamps are resolved.
    ///
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn query_resolve(&self, label: &str, size: u64) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        buffer(&self.device, &self.health, label, size, usage)
    }

    /// The pipeline of `source`, compiled on first use. `shared` declares all bindings as writable;
    /// it is set if one buffer is bound both for reading and for writing.
    ///
    /// # Errors
    /// [`hal::Error::Driver`] if the driver rejects the shader.
    pub(crate) fn pipeline(&self, source: &Source, shared: bool) -> Result<Arc<Pipeline>> {
        let size = self.facts.subgroup_size.filter(|_| !self.without_subgroups.has(source.name()));
        let source = source.clone().with_subgroups(size);
        let text = self.planted.apply(source.text(shared));
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = pipelines.get(&text) {
            return Ok(Arc::clone(pipeline));
        }
        let writable = source.bindings().into_iter().map(|writable| writable || shared);
        let entries: Vec<_> = writable.enumerate().map(|(i, w)| layout_entry(i, w)).collect();
        let make = || self.make_pipeline(source.name(), &text, &entries);
        let pipeline = try_create(&self.device, &self.health, source.name(), Bytes(0), make)?;
        let pipeline = Arc::new(pipeline);
        pipelines.insert(text, Arc::clone(&pipeline));
        Ok(pipeline)
    }

    fn make_pipeline(
        &self,
        name: &'static str,
        text: &str,
        entries: &[wgpu::BindGroupLayoutEntry],
    ) -> Pipeline {
        let label = Some(name);
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: IMMEDIATES,
        });
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label,
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &[],
                zero_initialize_workgroup_memory: false,
            },
            cache: self.pipeline_cache.as_ref().map(PipelineCacheFile::cache),
        });
        Pipeline { name, pipeline, layout }
    }

    /// Waits until `submission` is done and its callbacks have run.
    ///
    /// # Errors
    /// A lost device, [`hal::Error::Driver`].
    pub(crate) fn wait(&self, submission: &Submission) -> Result<()> {
        if self.is_known_done(submission) {
            return self.health.check();
        }
        self.wait_and_poll(submission)
    }

    /// [`Gpu::wait`], which also runs the callbacks of requests that were made after the submission
    /// was done.
    ///
    /// # Errors
    /// A lost device, [`hal::Error::Driver`].
    pub(crate) fn wait_and_poll(&self, submission: &Submission) -> Result<()> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        loop {
            self.health.check()?;
            if self.poll(submission, POLL_INTERVAL)? {
                return self.health.check();
            }
        }
    }

    /// Whether an earlier wait for this or a later submission has succeeded.
    fn is_known_done(&self, submission: &Submission) -> bool {
        self.done.load(Ordering::Acquire) >= submission.number
    }

    /// Waits up to `timeout` for `submission`, and for other threads that poll; returns whether the
    /// submission is done and its callbacks have run. With a `timeout` of 0, it is not done as long
    /// as another thread polls. No other function polls the driver.
    ///
    /// # Errors
    /// A lost device, [`hal::Error::Driver`].
    pub(crate) fn poll(&self, submission: &Submission, timeout: Duration) -> Result<bool> {
        let _polling = match (self.polling.try_lock(), timeout.is_zero()) {
            (Ok(guard), _) => guard,
            (Err(TryLockError::WouldBlock), true) => return Ok(false),
            (Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)), _) => {
                self.polling.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        let submission_index = Some(submission.index.clone());
        let poll = wgpu::PollType::Wait { submission_index, timeout: Some(timeout) };
        match self.health.guard(|| self.device.poll(poll))? {
            Ok(_) => {
                self.done.fetch_max(submission.number, Ordering::Release);
                Ok(true)
            }
            Err(wgpu::PollError::Timeout) => Ok(false),
            Err(error) => {
                // A lost device rejected the submission, so the poll fails.
                self.health.check()?;
                Err(driver("poll", one_line(&error)))
            }
        }
    }

    /// Submits pending writes, then the commands of an encoder if given.
    pub(crate) fn submit(&self, commands: Option<wgpu::CommandBuffer>) -> Submission {
        // `submit` retires submissions too. The lock also keeps the numbers in order.
        let _polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.submissions.fetch_add(1, Ordering::Relaxed) + 1;
        Submission { index: self.queue.submit(commands), number }
    }

    pub(crate) fn add_encoded_ahead(&self) {
        self.encoded_ahead.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_dispatches(&self, dispatches: usize) {
        self.dispatches.fetch_add(dispatches as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            submissions: count(&self.submissions),
            dispatches: count(&self.dispatches),
            waits: count(&self.waits),
            copies: count(&self.copies),
            encoded_ahead: count(&self.encoded_ahead),
        }
    }

    pub(crate) fn encoder(&self, label: &str) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) })
    }
}

fn layout_entry(binding: usize, writable: bool) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: !writable },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    }
}

fn storage(device: &wgpu::Device, health: &Health, label: &str, size: u64) -> Result<wgpu::Buffer> {
    let copies = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    buffer(device, health, label, size, wgpu::BufferUsages::STORAGE | copies)
}

fn buffer(
    device: &wgpu::Device,
    health: &Health,
    label: &str,
    size: u64,
    usage: wgpu::BufferUsages,
) -> Result<wgpu::Buffer> {
    let limit = Bytes(device.limits().max_buffer_size);
    if Bytes(size) > limit {
        let message = format!("needs {}, but a buffer holds at most {limit}", Bytes(size));
        return Err(driver(format!("creating {label}"), message));
    }
    let descriptor =
        wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
    try_create(device, health, label, Bytes(size), || device.create_buffer(&descriptor))
}
