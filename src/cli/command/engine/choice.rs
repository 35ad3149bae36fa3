//! Which of the devices that are there are used, and how much of their memory.

use crate::cli::config::device::DeviceOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::parse::Budget;
use crate::cli::terminal::Terminal;
use crate::devices::{Candidate, Missing, backend_of};
use hal::{Bytes, MemoryReport};

/// What is left free of a device's memory where the user sets no budget: for the desktop, and for what other programs
/// take while the model runs.
const MARGIN: Bytes = Bytes(512 << 20);

/// What may be used of a device.
pub(super) fn budget(
    given: Option<&Budget>,
    memory: MemoryReport,
    name: &str,
    terminal: &Terminal,
) -> Result<Bytes, Failure> {
    let known = memory.free.or(memory.total);
    let budget = match (given, known) {
        (Some(Budget::Bytes(bytes)), _) => match memory.total {
            Some(total) if total < Bytes(*bytes) => {
                terminal.note(&format!(
                    "--vram-budget: {name} has {total}, so that is the limit, not {}",
                    Bytes(*bytes)
                ));
                total
            }
            _ => Bytes(*bytes),
        },
        (Some(Budget::Share(share)), _) => {
            let Some(total) = memory.total.or(memory.free) else {
                let message = format!("--vram-budget: {name} does not tell how much memory it has");
                return Err(Failure::usage(message).help("give the budget in bytes, such as 6GiB"));
            };
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a share of a u64
            Bytes((total.0 as f64 * f64::from(*share)) as u64)
        }
        (Some(Budget::Auto) | None, Some(free)) => free - MARGIN,
        (Some(Budget::Auto) | None, None) => {
            terminal.note(&format!(
                "{name} does not tell how much of its memory is free: as much is used as it gives; --vram-budget sets a limit"
            ));
            Bytes::MAX
        }
    };
    Ok(budget)
}

/// The devices that are wanted, of those that were found.
pub(super) fn choose(
    wanted: &DeviceOptions,
    found: Vec<Candidate>,
    missing: &[Missing],
) -> Result<Vec<Candidate>, Failure> {
    let why = |message: String, backend: Option<&str>| {
        let mut failure = Failure::new(Exit::BackendMissing, message);
        let backend = wanted.backend.or(backend);
        // The last is the one that reaches most devices.
        let concerned = missing.iter().find(|missing| backend == Some(missing.backend));
        if let Some(missing) = concerned.or(missing.last()) {
            failure.causes = vec![format!("{}: {}", missing.backend, missing.reason)];
            failure = failure.help(missing.hint.clone());
        }
        failure
    };
    let names: Vec<&str> = found.iter().map(|candidate| candidate.name.as_str()).collect();
    let listed = match names.is_empty() {
        true => "there is none beside the CPU".to_owned(),
        false => format!("there are: {}", names.join(", ")),
    };
    let of_backend = |candidate: &Candidate| wanted.backend.is_none_or(|b| b == candidate.backend);
    let mut chosen = Vec::new();
    match &wanted.named {
        Some(wanted) => {
            for name in wanted.iter().filter(|name| !name.eq_ignore_ascii_case("cpu")) {
                let by_name = |c: &&Candidate| c.name.eq_ignore_ascii_case(name) && of_backend(c);
                let Some(candidate) = found.iter().find(by_name) else {
                    return Err(why(
                        format!("no device '{name}': {listed}"),
                        Some(backend_of(name)),
                    ));
                };
                if chosen.iter().any(|other: &Candidate| other.name == candidate.name) {
                    return Err(Failure::usage(format!("--device names '{name}' twice")));
                }
                chosen.push(candidate.clone());
            }
        }
        None => {
            let once = |c: &Candidate| c.same_as.is_none() || wanted.backend.is_some();
            chosen.extend(found.into_iter().filter(|c| of_backend(c) && !c.software && once(c)));
        }
    }
    if let Some(backend) = wanted.backend
        && chosen.is_empty()
    {
        return Err(why(format!("no device for --backend {backend}"), None));
    }
    match wanted.main {
        None => Ok(chosen),
        Some(_) if chosen.is_empty() => Ok(chosen),
        Some(n) if n < chosen.len() => Ok(vec![chosen.swap_remove(n)]),
        Some(n) => Err(why(format!("no device number {n}: there are {}", chosen.len()), None)),
    }
}

/// One line where a device was expected: because flags are about it, or because this build could use one.
pub(super) fn tell_missing(wanted: &DeviceOptions, missing: &[Missing], terminal: &Terminal) {
    // The last is the one that reaches most devices: what it lacks is what would help.
    let Some(reason) = missing.iter().rfind(|m| m.is_built).map(|m| &m.reason) else { return };
    terminal.note(&match &wanted.expected_by[..] {
        [] => format!(
            "everything runs on the CPU: {reason}; `thermocline doctor` says what would help"
        ),
        flags => {
            let change = if flags.len() == 1 { "changes" } else { "change" };
            let flags = flags.join(" and ");
            format!("{flags} {change} nothing: {reason}, so everything runs on the CPU")
        }
    });
}

/// One line where two wishes cannot be met together.
pub(super) fn tell_dropped(wanted: &DeviceOptions, terminal: &Terminal) {
    if wanted.without_layers {
        terminal.note("--n-gpu-layers changes nothing: --disable-gpu-index keeps the neurons of all layers on the CPU");
    }
}

/// Why nothing of a device is used where the user sets no budget.
pub(super) fn too_little(name: &str, memory: MemoryReport) -> String {
    let known = memory.free.or(memory.total).unwrap_or_default();
    format!(
        "{name}: of {known} of memory nothing is left to use, since {MARGIN} are left free for others; --vram-budget sets how much may be used"
    )
}

pub(super) fn check_number(wanted: &DeviceOptions, n_devices: usize) -> Result<(), Failure> {
    let n = wanted.budgets.len();
    match n > 1 && n_devices > 0 && n != n_devices {
        true => {
            let devices = if n_devices == 1 { "device" } else { "devices" };
            Err(Failure::usage(format!("--vram-budget has {n} values for {n_devices} {devices}")))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::ColorWhen;

    fn quiet() -> Terminal {
        Terminal::new(ColorWhen::Off, true, 0)
    }

    fn found() -> Vec<Candidate> {
        ["Card0", "Card1"].map(|name| Candidate::assumed(name, Bytes(8 << 30))).into()
    }

    #[test]
    fn devices_by_name_and_number() {
        let choose = |wanted: DeviceOptions| {
            let missing = Missing {
                backend: "wgpu",
                is_built: true,
                reason: "no driver".to_owned(),
                hint: "install one".to_owned(),
            };
            let chosen = super::choose(&wanted, found(), &[missing]);
            chosen.map(|all| all.into_iter().map(|c| c.name).collect::<Vec<_>>())
        };
        let named = |names: &[&str]| {
            let named = names.iter().map(|&name| name.to_owned()).collect();
            DeviceOptions { named: Some(named), ..DeviceOptions::default() }
        };
        assert_eq!(choose(DeviceOptions::default()).unwrap(), ["Card0", "Card1"]);
        assert_eq!(choose(named(&["card1"])).unwrap(), ["Card1"]);
        let second = DeviceOptions { main: Some(1), ..DeviceOptions::default() };
        assert_eq!(choose(second).unwrap(), ["Card1"]);
        let failure = choose(named(&["CUDA0"])).unwrap_err();
        assert_eq!(failure.exit, Exit::BackendMissing);
        assert!(failure.message.contains("there are: Card0, Card1"), "{failure:?}");
        let wgpu = DeviceOptions { backend: Some("wgpu"), ..DeviceOptions::default() };
        let failure = choose(wgpu).unwrap_err();
        assert!(failure.exit == Exit::BackendMissing && failure.help.is_some());
        assert_eq!(choose(named(&["Card0", "card0"])).unwrap_err().exit, Exit::Usage);
        let cuda = DeviceOptions { backend: Some("cuda"), ..DeviceOptions::default() };
        assert_eq!(choose(cuda).unwrap_err().exit, Exit::BackendMissing);
        let third = DeviceOptions { main: Some(2), ..DeviceOptions::default() };
        assert_eq!(choose(third).unwrap_err().exit, Exit::BackendMissing);
    }

    #[test]
    fn a_card_that_two_drivers_show_is_taken_once() {
        let choose = |wanted: DeviceOptions| {
            let mut found = found();
            found[1].same_as = Some("Card0".to_owned());
            found[1].backend = "wgpu";
            let chosen = super::choose(&wanted, found, &[]).unwrap();
            chosen.into_iter().map(|c| c.name).collect::<Vec<_>>()
        };
        assert_eq!(choose(DeviceOptions::default()), ["Card0"]);
        let named = Some(vec!["Card1".to_owned()]);
        assert_eq!(choose(DeviceOptions { named, ..DeviceOptions::default() }), ["Card1"]);
        let backend = Some("wgpu");
        assert_eq!(choose(DeviceOptions { backend, ..DeviceOptions::default() }), ["Card1"]);
    }

    #[test]
    fn budgets_of_what_there_is() {
        let memory = |free: u64, total: u64| MemoryReport {
            free: Some(Bytes(free << 30)),
            total: Some(Bytes(total << 30)),
        };
        let budget = |given: Option<Budget>, memory| {
            super::budget(given.as_ref(), memory, "Card", &quiet()).map(|bytes| bytes.0)
        };
        assert_eq!(budget(None, memory(6, 8)), Ok((6 << 30) - MARGIN.0));
        assert_eq!(budget(Some(Budget::Auto), memory(6, 8)), Ok((6 << 30) - MARGIN.0));
        assert_eq!(budget(Some(Budget::Share(0.5)), memory(6, 8)), Ok(4 << 30));
        assert_eq!(budget(Some(Budget::Bytes(5)), memory(6, 8)), Ok(5));
        assert_eq!(budget(Some(Budget::Bytes(9 << 30)), memory(6, 8)), Ok(8 << 30));
        assert_eq!(budget(None, MemoryReport::default()), Ok(u64::MAX));
        assert!(budget(Some(Budget::Share(0.5)), MemoryReport::default()).is_err());
    }
}
