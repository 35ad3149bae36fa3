//! Chooses the devices to use, and sets the budgets of their memory.

use hal::{Bytes, MemoryReport};
use placement::PlacementPolicy;

use crate::devices::{Candidate, MissingBackend, backend_of};
use crate::error::DeviceError;
use crate::notice::{DeviceFull, Notice, Observer};
use crate::options::{Budget, DeviceOptions};

type Result<T> = std::result::Result<T, DeviceError>;

/// Device memory that [`Budget::Auto`] leaves free for the desktop and other programs.
const MARGIN: Bytes = Bytes(512 << 20);

/// The budget of a device: `given`, but at most the device's memory. By default and for
/// [`Budget::Auto`]: the free memory (the total, if the driver does not report what is free) minus
/// [`MARGIN`], or no limit if the driver reports neither.
pub(crate) fn budget(
    given: Option<&Budget>,
    memory: MemoryReport,
    name: &str,
    observer: &dyn Observer,
) -> Result<Bytes> {
    let known = memory.free.or(memory.total);
    let budget = match (given, known) {
        (Some(Budget::Bytes(bytes)), _) => match memory.total {
            Some(total) if total < Bytes(*bytes) => {
                let (device, wanted) = (name.to_owned(), Bytes(*bytes));
                observer.notice(&Notice::BudgetReduced { device, wanted, total });
                total
            }
            _ => Bytes(*bytes),
        },
        (Some(Budget::Share(share)), _) => {
            let Some(total) = memory.total.or(memory.free) else {
                return Err(DeviceError::ShareOfUnknown { device: name.to_owned() });
            };
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // fits in a u64
            Bytes((total.0 as f64 * f64::from(*share)) as u64)
        }
        (Some(Budget::Auto) | None, Some(free)) => free - MARGIN,
        (Some(Budget::Auto) | None, None) => {
            observer.notice(&Notice::NoMemoryReport { device: name.to_owned() });
            Bytes::MAX
        }
    };
    Ok(budget)
}

/// Selects the requested devices from `found`. A software driver is used only by name, or by
/// [`PlacementPolicy::Fill`] if there is no other device.
pub(crate) fn choose(
    wanted: &DeviceOptions,
    found: Vec<Candidate>,
    missing: &[MissingBackend],
) -> Result<Vec<Candidate>> {
    let missing_backend = |backend: Option<&str>| {
        let backend = wanted.backend.or(backend);
        // The last entry is the backend that supports the most devices.
        let concerned = missing.iter().find(|missing| backend == Some(missing.backend));
        concerned.or(missing.last()).cloned().map(Box::new)
    };
    let of_backend = |candidate: &Candidate| wanted.backend.is_none_or(|b| b == candidate.backend);
    let mut chosen = Vec::new();
    match &wanted.named {
        Some(wanted) => {
            for name in wanted.iter().filter(|name| !name.eq_ignore_ascii_case("cpu")) {
                let by_name = |c: &&Candidate| c.name.eq_ignore_ascii_case(name) && of_backend(c);
                let Some(candidate) = found.iter().find(by_name) else {
                    return Err(DeviceError::Unknown {
                        name: name.clone(),
                        known: found.iter().map(|candidate| candidate.name.clone()).collect(),
                        missing: missing_backend(Some(backend_of(name))),
                    });
                };
                if chosen.iter().any(|other: &Candidate| other.name == candidate.name) {
                    return Err(DeviceError::Twice { name: name.clone() });
                }
                let is_same = |other: &&Candidate| {
                    other.same_as.as_ref() == Some(&candidate.name)
                        || candidate.same_as.as_ref() == Some(&other.name)
                };
                if let Some(other) = chosen.iter().find(is_same) {
                    let (name, other) = (candidate.name.clone(), other.name.clone());
                    return Err(DeviceError::SameCard { name, other });
                }
                chosen.push(candidate.clone());
            }
        }
        None => {
            let once = |c: &Candidate| c.same_as.is_none() || wanted.backend.is_some();
            let usable = found.into_iter().filter(|c| of_backend(c) && once(c));
            let (software, hardware): (Vec<_>, Vec<_>) = usable.partition(|c| c.software);
            chosen.extend(hardware);
            if chosen.is_empty() && wanted.constraints.policy == PlacementPolicy::Fill {
                chosen.extend(software.into_iter().take(1));
            }
        }
    }
    if let Some(backend) = wanted.backend
        && chosen.is_empty()
    {
        return Err(DeviceError::OfBackend { backend, missing: missing_backend(None) });
    }
    match wanted.main {
        None => Ok(chosen),
        Some(_) if chosen.is_empty() => Ok(chosen),
        Some(n) if n < chosen.len() => Ok(vec![chosen.swap_remove(n)]),
        Some(n) => {
            let (n_devices, missing) = (chosen.len(), missing_backend(None));
            Err(DeviceError::Number { n, n_devices, missing })
        }
    }
}

/// The notice that no device was found; `None` if this build supports no devices other than the
/// CPU.
pub(crate) fn no_device(wanted: &DeviceOptions, missing: &[MissingBackend]) -> Option<Notice> {
    // The last entry is the backend that supports the most devices, so its hint helps most.
    let reason = missing.iter().rfind(|m| m.is_built).map(|m| m.reason.clone())?;
    Some(Notice::NoDevice { reason, expected_by: wanted.expected_by.clone() })
}

/// The notice that a device's free memory is below [`MARGIN`], so that it is used only with a
/// budget from the user.
pub(crate) fn device_full(name: &str, memory: MemoryReport) -> DeviceFull {
    let known = memory.free.or(memory.total).unwrap_or_default();
    DeviceFull { device: name.to_owned(), known, margin: MARGIN }
}

pub(crate) fn check_budget_count(wanted: &DeviceOptions, n_devices: usize) -> Result<()> {
    let n_budgets = wanted.budgets.len();
    if n_budgets > 1 && n_devices > 0 && n_budgets != n_devices {
        return Err(DeviceError::Budgets { n_budgets, n_devices });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::SilentObserver;
    use placement::PlanConstraints;

    fn found() -> Vec<Candidate> {
        ["Card0", "Card1"].map(|name| Candidate::assumed(name, Bytes(8 << 30))).into()
    }

    #[test]
    fn devices_are_chosen_by_name_or_number() {
        let choose = |wanted: DeviceOptions| {
            let missing = MissingBackend {
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
        let error = choose(named(&["CUDA0"])).unwrap_err();
        assert!(error.to_string().contains("the devices are Card0, Card1"), "{error:?}");
        let wgpu = DeviceOptions { backend: Some("wgpu"), ..DeviceOptions::default() };
        let error = choose(wgpu).unwrap_err();
        assert!(matches!(error, DeviceError::OfBackend { missing: Some(_), .. }), "{error:?}");
        let error = choose(named(&["Card0", "card0"])).unwrap_err();
        assert!(matches!(error, DeviceError::Twice { .. }), "{error:?}");
        let cuda = DeviceOptions { backend: Some("cuda"), ..DeviceOptions::default() };
        assert!(matches!(choose(cuda).unwrap_err(), DeviceError::OfBackend { .. }));
        let third = DeviceOptions { main: Some(2), ..DeviceOptions::default() };
        assert!(matches!(choose(third).unwrap_err(), DeviceError::Number { n: 2, .. }));
    }

    #[test]
    fn a_card_that_two_drivers_report_is_used_once() {
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
        let both = Some(vec!["Card0".to_owned(), "Card1".to_owned()]);
        let (mut found, both) =
            (found(), DeviceOptions { named: both, ..DeviceOptions::default() });
        found[1].same_as = Some("Card0".to_owned());
        let error = super::choose(&both, found, &[]).unwrap_err();
        assert!(matches!(error, DeviceError::SameCard { .. }), "{error:?}");
        let backend = Some("wgpu");
        assert_eq!(choose(DeviceOptions { backend, ..DeviceOptions::default() }), ["Card1"]);
    }

    #[test]
    fn filling_uses_a_software_driver_where_there_is_no_other_device() {
        let choose = |policy: PlacementPolicy, hardware: usize| {
            let mut found = found();
            found.iter_mut().skip(hardware).for_each(|candidate| candidate.software = true);
            let constraints = PlanConstraints { policy, ..PlanConstraints::default() };
            let wanted = DeviceOptions { constraints, ..DeviceOptions::default() };
            let chosen = super::choose(&wanted, found, &[]).unwrap();
            chosen.into_iter().map(|c| c.name).collect::<Vec<_>>()
        };
        assert_eq!(choose(PlacementPolicy::Fill, 0), ["Card0"]);
        assert_eq!(choose(PlacementPolicy::Fill, 1), ["Card0"]);
        assert_eq!(choose(PlacementPolicy::Fill, 2), ["Card0", "Card1"]);
        assert!(choose(PlacementPolicy::Fastest, 0).is_empty());
        assert!(choose(PlacementPolicy::Layers, 0).is_empty());
    }

    #[test]
    fn budgets_depend_on_the_devices_memory() {
        let memory = |free: u64, total: u64| MemoryReport {
            free: Some(Bytes(free << 30)),
            total: Some(Bytes(total << 30)),
        };
        let budget = |given: Option<Budget>, memory| {
            super::budget(given.as_ref(), memory, "Card", &SilentObserver).map(|bytes| bytes.0).ok()
        };
        assert_eq!(budget(None, memory(6, 8)), Some((6 << 30) - MARGIN.0));
        assert_eq!(budget(Some(Budget::Auto), memory(6, 8)), Some((6 << 30) - MARGIN.0));
        assert_eq!(budget(Some(Budget::Share(0.5)), memory(6, 8)), Some(4 << 30));
        assert_eq!(budget(Some(Budget::Bytes(5)), memory(6, 8)), Some(5));
        assert_eq!(budget(Some(Budget::Bytes(9 << 30)), memory(6, 8)), Some(8 << 30));
        assert_eq!(budget(None, MemoryReport::default()), Some(u64::MAX));
        assert!(budget(Some(Budget::Share(0.5)), MemoryReport::default()).is_none());
    }
}
