//! Tests of the vault.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use futures::FutureExt;

use super::sealed_folder::MAX_RECORD_BYTES;
use super::*;
use crate::access_token::{AccessToken, TokenNumber};
use crate::testing::record;
use crate::token_request::IssuedToken;
use weir_base::secrets::sealing::SealingKeys;
use weir_base::secrets::secret::random_token;

async fn sign_in(state: &Path, upstream: &str, record: SignInRecord) -> Vault {
    let _ = Vault::sign_in(state, upstream, record).await.expect("written");
    Vault::open(state).expect("a vault")
}

#[tokio::test]
async fn a_record_that_is_written_is_kept_although_its_notes_cannot_be_written() {
    let state = tempfile::tempdir().expect("a folder");
    let first = SignInRecord { is_configured_client: true, ..record() };
    let vault = sign_in(state.path(), "hub", first.clone()).await;
    // A folder in the place of the file cannot be replaced by a file.
    fs::create_dir(vault.files.path.join(notes_name("hub"))).expect("made");
    let second = SignInRecord { access_token: "hunter4".into(), ..first.clone() };
    let former = Vault::sign_in(state.path(), "hub", second.clone()).await;
    assert_eq!((former, vault.read("hub")), (Ok(Some(first)), Ok(Some(second))));
}

#[tokio::test]
async fn a_record_is_sealed_replaced_and_removed() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = Vault::open(state.path()).expect("a vault");
    assert_eq!(vault.read("hub"), Ok(None));
    sign_in(state.path(), "hub", record()).await;
    // Another process.
    let again = Vault::open(state.path()).expect("a vault");
    assert_eq!(again.read("hub"), Ok(Some(record())));
    assert_eq!(again.read("hub2"), Ok(None));
    let second = SignInRecord { refresh_token: None, ..record() };
    let first = Vault::sign_in(state.path(), "hub", second.clone()).await;
    assert_eq!(first, Ok(Some(record())));
    assert_eq!(again.read("hub"), Ok(Some(second.clone())));
    for file in fs::read_dir(vault.files.path).expect("a folder") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("text");
        assert!(!text.contains("hunter") && !text.contains("mcp.test"), "{text}");
        let mode = MetadataExt::mode(&fs::metadata(&path).expect("there"));
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
    assert_eq!(Vault::sign_out(state.path(), "hub").await, Ok((true, Some(second))));
    assert_eq!(Vault::sign_out(state.path(), "hub").await, Ok((false, None)));
    assert_eq!(again.read("hub"), Ok(None));
}

#[test]
fn what_is_debugged_shows_no_secret() {
    let (token, lifetime) = (Ok("hunter4".into()), None);
    let issued = IssuedToken { token, refresh_token: Some("hunter5".into()), lifetime };
    let (number, now) = (TokenNumber::default(), tokio::time::Instant::now());
    let access = AccessToken::new(&issued, SignInNumber::default(), number, now).expect("valid");
    let settings = crate::testing::settings();
    let client = SignInRecord { client_secret: Some("hunter6".into()), ..record() };
    let shown = format!("{client:?} {issued:?} {access:?} {settings:?} {:?}", client.client());
    assert!(!shown.contains("hunter"), "{shown}");
}

#[tokio::test]
async fn a_record_of_another_upstream_or_of_other_keys_does_not_open() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = sign_in(state.path(), "hub", record()).await;
    let path = |upstream| vault.files.path.join(name(upstream));
    fs::copy(path("hub"), path("other")).expect("copied");
    let text = vault.read("other").expect_err("refused").to_string();
    let expected =
        "was sealed with other keys, or is damaged: sign in again with `weir login other`";
    assert!(text.ends_with(expected), "{text}");
    let path = path("hub");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("changed");
    let text = vault.read("hub").expect_err("refused").to_string();
    assert!(text.contains("others than its owner may read it"), "{text}");
    // It is removed all the same.
    assert_eq!(Vault::sign_out(state.path(), "other").await, Ok((true, None)));
    assert_eq!(vault.read("other"), Ok(None));
}

#[tokio::test]
async fn all_sign_ins_are_sealed_with_a_new_key_and_the_former_one_is_forgotten() {
    let state = tempfile::tempdir().expect("a folder");
    for upstream in ["hub", "wiki"] {
        sign_in(state.path(), upstream, record()).await;
    }
    let bound = BoundClient { client_id: None, issuer: "https://id.test".into() };
    Vault::bind(state.path(), "hub", &bound).await.expect("noted");
    let vault = Vault::open(state.path()).expect("a vault");
    let keys = SealingKeys::path(&vault.files.path);
    let former = fs::read_to_string(&keys).expect("keys");
    let copy = fs::read(vault.files.path.join(name("hub"))).expect("a record");
    // Another change of keys was killed while it wrote the new ones.
    fs::write(vault.files.path.join(".new-x"), &former).expect("written");
    assert_eq!(Vault::rekey(state.path()).await, Ok(2));
    let new = fs::read_to_string(&keys).expect("keys");
    assert!(new.lines().count() == 1 && new != former);
    let again = Vault::open(state.path()).expect("a vault");
    for upstream in ["hub", "wiki"] {
        assert_eq!(again.read(upstream), Ok(Some(record())));
        assert!(vault.read(upstream).is_err(), "with the former key");
    }
    assert_eq!(again.notes("hub").expect("readable").bound, [bound]);
    for file in fs::read_dir(&vault.files.path).expect("a folder") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("text");
        assert!(!text.contains(former.trim_end()), "the former key is left");
    }
    // One that cannot be read changes nothing, however often.
    fs::write(vault.files.path.join(name("hub")), copy).expect("written");
    for _ in 0..10 {
        assert!(Vault::rekey(state.path()).await.is_err());
    }
    assert_eq!(fs::read_to_string(&keys).expect("keys"), new);
    let again = Vault::open(state.path()).expect("a vault");
    assert_eq!(again.read("wiki"), Ok(Some(record())));
}

#[tokio::test]
async fn space_for_the_largest_record_is_reserved_and_used_or_released() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = sign_in(state.path(), "hub", record()).await;
    let files = || fs::read_dir(&vault.files.path).expect("a folder").count();
    let before = files();
    drop(vault.reserve_space().expect("there is space"));
    assert_eq!(files(), before);
    let space = vault.reserve_space().expect("there is space");
    assert_eq!(space.0.as_file().metadata().expect("a file").len(), MAX_RECORD_BYTES);
    let access_token = "x".repeat(16_384).as_str().into();
    let refreshed = SignInRecord { access_token, ..record() };
    let write = |_| (RecordChange::Write(Box::new(refreshed.clone())), ());
    Vault::change(state.path(), "hub", Some(space), write).await.expect("written");
    assert_eq!((files(), vault.read("hub")), (before, Ok(Some(refreshed))));
    fs::remove_dir_all(&vault.files.path).expect("removed");
    let refused = vault.reserve_space().map(drop);
    assert!(matches!(refused, Err(OAuthError::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn a_change_of_keys_that_was_interrupted_is_finished_by_the_next_one() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = sign_in(state.path(), "hub", record()).await;
    let keys = SealingKeys::path(&vault.files.path);
    let former = fs::read_to_string(&keys).expect("keys");
    let new = random_token();
    let both = format!("{new}\n{}", former.trim_end());
    vault.files.replace_file(&keys, &both, None).expect("written");
    assert_eq!(Vault::rekey(state.path()).await, Ok(1));
    assert_eq!(fs::read_to_string(&keys).expect("keys"), format!("{new}\n"));
    let again = Vault::open(state.path()).expect("a vault");
    assert_eq!(again.read("hub"), Ok(Some(record())));
}

#[tokio::test(start_paused = true)]
async fn a_record_is_sealed_with_the_keys_that_there_are_when_it_is_changed() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = sign_in(state.path(), "hub", record()).await;
    let lock = vault.files.lock_changes().await.expect("locked");
    let mut signed_in = std::pin::pin!(Vault::sign_in(state.path(), "wiki", record()));
    assert!(futures::poll!(&mut signed_in).is_pending());
    // The process that has the lock changes the keys.
    let keys = SealingKeys::path(&vault.files.path);
    vault.files.replace_file(&keys, &random_token(), None).expect("written");
    drop(lock);
    signed_in.await.expect("written");
    let vault = Vault::open(state.path()).expect("a vault");
    assert_eq!(vault.read("wiki"), Ok(Some(record())));
}

#[tokio::test]
async fn a_record_is_not_larger_than_what_is_read_and_a_link_is_no_vault() {
    let state = tempfile::tempdir().expect("a folder");
    let large = SignInRecord { resource: Some("x".repeat(100_000)), ..record() };
    let refused = Vault::sign_in(state.path(), "hub", large).await.expect_err("refused");
    assert!(refused.to_string().ends_with("it is larger than 128 KiB"), "{refused}");
    let vault = Vault::open(state.path()).expect("a vault");
    assert_eq!(vault.read("hub"), Ok(None));
    let elsewhere = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(state.path().join("sign-in"), elsewhere.path().join("sign-in"))
        .expect("a link");
    let refused = Vault::open(elsewhere.path()).err().expect("refused").to_string();
    assert_eq!(refused, "it is a link, and not a folder");
}

#[tokio::test(start_paused = true)]
async fn a_user_signs_in_and_out_while_others_refresh_or_were_stopped() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = sign_in(state.path(), "hub", record()).await;
    let _refreshing = vault.lock_refresh("hub").await.expect("locked");
    let second = SignInRecord { access_token: "second".into(), ..record() };
    Vault::sign_in(state.path(), "hub", second.clone()).now_or_never().expect("at once").unwrap();
    let out = Vault::sign_out(state.path(), "hub").now_or_never().expect("at once");
    assert_eq!(out, Ok((true, Some(second.clone()))));
    // A process was stopped while it changed the vault.
    let _stopped = vault.files.lock_changes().await.expect("locked");
    let _ = Vault::sign_in(state.path(), "hub", second.clone()).await.expect("written");
    assert_eq!(vault.read("hub"), Ok(Some(second)));
}

#[tokio::test]
async fn notes_outlive_a_sign_in_and_say_whether_it_ran_out() {
    let state = tempfile::tempdir().expect("a folder");
    let number = SignInNumber::random();
    let signed_in = SignInRecord { number, is_configured_client: true, ..record() };
    let vault = sign_in(state.path(), "hub", signed_in.clone()).await;
    assert_eq!(vault.notes("hub"), Ok(SignInNotes::default()));
    let end = |_| (RecordChange::RunOut, ());
    Vault::change(state.path(), "hub", None, end).await.expect("removed");
    let bound = vec![signed_in.bound()];
    assert_eq!(vault.read("hub"), Ok(None));
    let ran_out = SignInNotes { bound: bound.clone(), ran_out: Some(number) };
    assert_eq!(vault.notes("hub"), Ok(ran_out));
    assert_eq!(Vault::sign_out(state.path(), "hub").await, Ok((true, None)));
    assert_eq!(vault.notes("hub"), Ok(SignInNotes { bound, ran_out: None }));
}

#[tokio::test(start_paused = true)]
async fn one_process_at_a_time_refreshes_a_record_unless_the_first_was_stopped() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = Vault::open(state.path()).expect("a vault");
    let first = vault.lock_refresh("hub").await.expect("locked");
    vault.lock_refresh("other").await.expect("locked");
    let mut second = std::pin::pin!(vault.lock_refresh("hub"));
    assert!(futures::poll!(&mut second).is_pending());
    drop(first);
    let begin = tokio::time::Instant::now();
    let second = second.await.expect("locked");
    assert!(begin.elapsed() < Duration::from_secs(1));
    // Each holder in turn is waited for as long as the first.
    let mut third = std::pin::pin!(vault.lock_refresh("hub"));
    assert!(futures::poll!(&mut third).is_pending());
    tokio::time::sleep(LOCK_PATIENCE / 2).await;
    assert!((&mut third).now_or_never().is_none());
    drop(second);
    let stopped = third.await.expect("locked");
    let begin = tokio::time::Instant::now();
    let next = vault.lock_refresh("hub").await.expect("it does not wait for a stopped one");
    assert!((LOCK_PATIENCE..LOCK_PATIENCE * 2).contains(&begin.elapsed()));
    drop((stopped, next));
}
