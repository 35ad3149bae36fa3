//! Files that another user put where the program looks for its own.

use std::os::unix::fs::{PermissionsExt, chown};

use super::*;

const OTHER: u32 = 54_321;

/// Whether this process may give files away; prints why not.
fn may_chown() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root can give files to another user");
    }
    root
}

fn run(folder: &Folder, more: &[&str]) -> (Option<i32>, String) {
    let args = ["run", "-m", "story.gguf", "-p", "Once", "-n", "1", "-v"];
    let output = folder.run(&[&args[..], more].concat());
    (output.status.code(), stderr(&output))
}

#[test]
fn the_cache_folder_is_made_for_its_user_alone() {
    let folder = Folder::new();
    assert_eq!(run(&folder, &[]).0, Some(0));
    let mode = fs::metadata(folder.path("xdg/thermocline")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_side_file_of_another_user_is_refused() {
    if !may_chown() {
        return;
    }
    let folder = Folder::new();
    let side = folder.path("story.gguf.side");
    let profile = ["profile", "-m", "story.gguf", "--tokens", "64", "--out", "story.gguf.side"];
    assert!(folder.run(&profile).status.success());
    let beside = folder.path("story.thermocline.gguf");
    fs::rename(side, &beside).unwrap();
    let owner_is = |file: &str, user: u32| chown(folder.path(file), Some(user), None).unwrap();
    let other = "belongs to user 54321, who is neither you, nor root, nor the owner of the model";
    let plan = |expected: bool| {
        let output = folder.run(&["profile", "-m", "story.gguf", "--tokens", "64"]);
        let refused = stderr(&output).contains(other);
        assert_eq!(
            (refused, output.status.success()),
            (expected, !expected),
            "{}",
            stderr(&output)
        );
    };
    plan(false);
    owner_is("story.thermocline.gguf", OTHER);
    plan(true);
    // The owner of the model could have changed the model itself.
    owner_is("story.gguf", OTHER);
    plan(false);
}

#[test]
fn a_repack_cache_of_another_user_is_made_again() {
    if !may_chown() {
        return;
    }
    let folder = Folder::new();
    let cache = ["--repack-cache", "cache"];
    assert_eq!(run(&folder, &cache).0, Some(0));
    let files = || fs::read_dir(folder.path("cache")).unwrap().map(|entry| entry.unwrap().path());
    let kept = files().find(|path| path.extension().is_some_and(|end| end == "thermocline"));
    chown(kept.unwrap(), Some(OTHER), None).unwrap();
    let (code, text) = run(&folder, &cache);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("are written again: it belongs to user 54321"), "{text}");
    assert!(!run(&folder, &cache).1.contains("written again"));
}

#[test]
fn a_cache_folder_where_everyone_writes_is_not_used() {
    let folder = Folder::new();
    let cache = folder.path("xdg/thermocline");
    fs::create_dir_all(&cache).unwrap();
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    let (code, text) = run(&folder, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("is not used: every user may write to it"), "{text}");
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(!run(&folder, &[]).1.contains("is not used: every"));
}

#[test]
fn a_link_of_another_user_is_not_followed_to_a_cache() {
    if !may_chown() {
        return;
    }
    let folder = Folder::new();
    let cache = folder.path("xdg/thermocline");
    fs::create_dir_all(folder.path("xdg")).unwrap();
    fs::create_dir_all(folder.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(folder.path("elsewhere"), &cache).unwrap();
    assert!(!run(&folder, &[]).1.contains("is not used"), "a link of this user is followed");
    std::os::unix::fs::lchown(&cache, Some(OTHER), None).unwrap();
    let (code, text) = run(&folder, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("is not used: it is a symbolic link of user 54321"), "{text}");
}
