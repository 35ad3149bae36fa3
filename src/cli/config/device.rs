//! Which devices to use, how much of their memory, and what to place there.

use crate::cli::args::{BackendName, DeviceArgs};
use crate::cli::parse::{Budgets, Layers};
use crate::devices::backend_of;
use crate::placement::Wishes;
use runtime::{Budget, DeviceOptions};

/// Device options for each backend and budget; the CPU alone occurs once.
pub(super) fn combinations(args: &DeviceArgs) -> Vec<DeviceOptions> {
    let mut all: Vec<DeviceOptions> = Vec::new();
    let asked: Vec<_> = args.backend.iter().filter_map(|&name| backend_name(name)).collect();
    for &name in &args.backend {
        let budgets = args.vram_budget.iter().map(|budgets| vec![budgets.clone()]);
        let none = args.vram_budget.is_empty().then(Vec::new);
        for vram_budget in budgets.chain(none) {
            let one = DeviceArgs { backend: vec![name], vram_budget, ..args.clone() };
            let mut one = devices(&one);
            leave_to_others(&mut one, &asked);
            if one.backend == Some("cpu") {
                one.budgets.clear();
                one.expected_by.clear();
            }
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    all
}

/// Removes named devices that belong to another backend of the comparison.
fn leave_to_others(options: &mut DeviceOptions, asked: &[&str]) {
    let Some(backend) = options.backend.filter(|backend| *backend != "cpu") else { return };
    if let Some(named) = &mut options.named {
        named.retain(|name| {
            let own = backend_of(name);
            own == backend || !asked.contains(&own)
        });
    }
}

/// Converts the flags.
pub(super) fn devices(args: &DeviceArgs) -> DeviceOptions {
    let wanted_layers = match args.n_gpu_layers {
        Some(Layers::Whole(n)) => Some(n),
        Some(Layers::Auto) | None => None,
    };
    // A layer cannot be whole if its neurons stay on the CPU.
    let whole_layers = wanted_layers.filter(|n| *n == 0 || !args.disable_gpu_index);
    let names = args.device.as_deref().map(|list| {
        let names = list.split([',', '/']).map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
    });
    let is = |names: &[String], word: &str| names.iter().any(|n| n.eq_ignore_ascii_case(word));
    let none = names.as_ref().is_some_and(|names| {
        names.iter().all(|n| ["none", "cpu"].iter().any(|word| n.eq_ignore_ascii_case(word)))
    });
    let budgets = args.vram_budget.iter().flat_map(|Budgets(budgets)| budgets.iter().copied());
    let budgets: Vec<Budget> = budgets.collect();
    let flags = [
        ("--vram-budget", budgets.iter().any(|budget| *budget != Budget::Bytes(0))),
        ("--n-gpu-layers", whole_layers.is_some_and(|n| n > 0)),
        ("--main-gpu", args.main_gpu.is_some()),
    ];
    let named = names.as_ref().is_some_and(|names| !is(names, "auto"));
    let backend = args.backend.last().copied().unwrap_or(BackendName::Auto);
    let other = backend != BackendName::Auto && backend != BackendName::Cpu;
    let flags = flags.into_iter().chain([("--device", named && !none), ("--backend", other)]);
    DeviceOptions {
        backend: match none || whole_layers == Some(0) {
            true => Some("cpu"),
            false => backend_name(backend),
        },
        named: names.filter(|names| !none && !is(names, "auto")),
        main: args.main_gpu,
        budgets,
        wishes: Wishes {
            whole_layers,
            cache_on_cpu: args.no_kv_offload,
            neurons_on_cpu: args.disable_gpu_index,
        },
        adapt: !args.no_adapt,
        remeasure: args.reset_gpu_index,
        expected_by: flags.filter(|(_, given)| *given).map(|(f, _)| f).collect(),
        without_layers: wanted_layers != whole_layers,
    }
}

/// One of [`crate::devices::BACKENDS`]; `None` for `auto`.
fn backend_name(name: BackendName) -> Option<&'static str> {
    match name {
        BackendName::Auto => None,
        BackendName::Cpu => Some("cpu"),
        BackendName::Cuda => Some("cuda"),
        BackendName::Hip => Some("hip"),
        BackendName::Wgpu => Some("wgpu"),
    }
}
