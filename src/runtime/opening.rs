//! Opens the chosen devices. One that fails is replaced by the same card through another driver.

use std::sync::Arc;

use hal::Backend;

use crate::devices::Candidate;
use crate::error::DeviceError;
use crate::notice::{Notice, Observer};
use crate::options::DeviceOptions;

/// A device, and the entry of its driver.
pub(crate) type OpenedDevice = (Candidate, Arc<dyn Backend>);

/// Opens each of the `chosen` devices. Unless the user named devices or a backend, a device that
/// cannot be opened is replaced by the entry of `found` that is the same card; a notice says which
/// devices are not used, and why.
///
/// # Errors
/// [`DeviceError::CannotOpen`] for a device that the user named.
pub(crate) fn open_all(
    chosen: Vec<Candidate>,
    found: &[Candidate],
    wanted: &DeviceOptions,
    observer: &dyn Observer,
) -> Result<Vec<OpenedDevice>, DeviceError> {
    let is_known = |name: &str| found.iter().any(|c| c.name.eq_ignore_ascii_case(name));
    for name in wanted.switches.devices().filter(|name| !is_known(name)) {
        let what = format!(
            "--device-options has no effect on '{name}', which is not a device of this machine"
        );
        observer.notice(&Notice::NotPlaced(what));
    }
    let mut opened = Vec::new();
    for candidate in chosen {
        let reason = match candidate.open_with(&wanted.switches) {
            Ok(backend) => {
                opened.push((candidate, backend));
                continue;
            }
            Err(reason) => reason,
        };
        if wanted.named.is_some() {
            return Err(DeviceError::CannotOpen { name: candidate.name, reason });
        }
        let is_twin = |other: &&Candidate| other.same_as.as_ref() == Some(&candidate.name);
        let twin = found.iter().find(is_twin).filter(|_| wanted.backend.is_none());
        let twin =
            twin.and_then(|twin| Some((twin.clone(), twin.open_with(&wanted.switches).ok()?)));
        observer.notice(&Notice::DeviceFailed {
            device: candidate.name,
            reason: reason.to_string(),
            instead: twin.as_ref().map(|(twin, _)| twin.name.clone()),
        });
        opened.extend(twin);
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hal::Bytes;

    use super::*;

    /// Collects notices.
    #[derive(Debug, Default)]
    struct Notices(Mutex<Vec<String>>);

    impl Observer for Notices {
        fn notice(&self, notice: &Notice) {
            self.0.lock().unwrap().push(notice.to_string());
        }
    }

    /// A card that two drivers list, of which the first fails to open it, and another card.
    fn found() -> Vec<Candidate> {
        let [broken, mut twin, other] =
            ["CUDA0", "Vulkan0", "Vulkan1"].map(|name| Candidate::assumed(name, Bytes(8 << 30)));
        twin.same_as = Some("CUDA0".to_owned());
        vec![broken.failing("the driver is broken"), twin, other]
    }

    fn open(
        wanted: &DeviceOptions,
        chosen: &[usize],
    ) -> (Result<Vec<String>, String>, Vec<String>) {
        let (found, notices) = (found(), Notices::default());
        let chosen = chosen.iter().map(|&n| found[n].clone()).collect();
        let opened = open_all(chosen, &found, wanted, &notices);
        let names = opened.map(|all| all.into_iter().map(|(c, _)| c.name).collect());
        (names.map_err(|error| error.to_string()), notices.0.into_inner().unwrap())
    }

    #[test]
    fn a_card_whose_driver_fails_is_used_through_another_driver() {
        let (opened, notices) = open(&DeviceOptions::default(), &[0, 2]);
        assert_eq!(opened.unwrap(), ["Vulkan0", "Vulkan1"]);
        let [notice] = &notices[..] else { panic!("{notices:?}") };
        assert!(notice.contains("CUDA0 is not used") && notice.contains("broken"), "{notice}");
        assert!(notice.contains("Vulkan0, the same card"), "{notice}");
    }

    #[test]
    fn switches_of_missing_devices_are_noted() {
        let switches = "vulkan1:subgroups=off,CUDA7:graphs=off".parse().unwrap();
        let (_, notices) = open(&DeviceOptions { switches, ..DeviceOptions::default() }, &[2]);
        let [notice] = &notices[..] else { panic!("{notices:?}") };
        assert!(notice.contains("'CUDA7'"), "{notice}");
    }

    #[test]
    fn a_driver_that_the_user_chose_is_not_replaced() {
        let backend = DeviceOptions { backend: Some("cuda"), ..DeviceOptions::default() };
        let (opened, notices) = open(&backend, &[0]);
        assert_eq!(opened.unwrap(), [""; 0]);
        assert!(!notices[0].contains("Vulkan0"), "{notices:?}");
        let named = Some(vec!["CUDA0".to_owned()]);
        let (opened, _) = open(&DeviceOptions { named, ..DeviceOptions::default() }, &[0]);
        assert!(opened.unwrap_err().contains("CUDA0"));
    }
}
