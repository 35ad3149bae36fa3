//! Watchers see the neurons that fire, and do not change the generated text.

use super::*;

#[test]
fn watchers_see_fired_neurons_until_they_leave() {
    let prompt = tokens(9, 1);
    let plain = scheduler(256, 2, SchedulerOptions::default());
    let expected = run(&plain, request(&prompt, 60));
    assert!(plain.status().fired.layers.is_empty(), "nothing is recorded without a watcher");
    drop(plain);

    let scheduler = scheduler(256, 2, SchedulerOptions::default());
    let (first, second) = (scheduler.watch(), scheduler.watch());
    let watched = run(&scheduler, request(&prompt, 60));
    assert_eq!(watched.text, expected.text);
    let fired = scheduler.status().fired;
    assert!(fired.n_steps > 0 && fired.n_tokens == 1 && fired.refused.is_none(), "{fired:?}");
    assert!(!fired.layers.is_empty());
    for cells in &fired.layers {
        let n_fired = cells.iter().filter(|value| **value > 0).count();
        assert!((1..cells.len()).contains(&n_fired), "{n_fired} of {} cells", cells.len());
    }
    drop(first);
    drop(second);
    wait_until(&scheduler, "unwatched", |status| status.fired.layers.is_empty());
    let after = run(&scheduler, request(&tokens(9, 2), 20));
    assert_eq!(after.tokens.len(), 20);
    assert_eq!(scheduler.status().fired.n_steps, fired.n_steps);
}
