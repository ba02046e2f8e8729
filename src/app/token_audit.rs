//! Lines of the audit log about the access tokens of upstreams.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use weir_oauth::TokenOutcome;
use weir_record::audit::{Audit, SignInEvent};
use weir_upstream::Upstream;

/// Records in the audit log that there is an access token for the upstream, and why there is none
/// (any more), until the upstream stops. A refresh of a usable token is no line.
pub(super) fn record_tokens(upstream: &Upstream, audit: &Audit, tasks: &TaskTracker) {
    let Some(mut outcomes) = upstream.token_outcomes() else { return };
    let (audit, name) = (audit.clone(), Arc::from(upstream.name().as_str()));
    let stop = upstream.stop_token();
    tasks.spawn(async move {
        while let Some(Ok(())) = stop.run_until_cancelled(outcomes.changed()).await {
            let outcome = outcomes.borrow_and_update().clone();
            match outcome {
                TokenOutcome::None => {}
                TokenOutcome::Issued => audit.record_sign_in(SignInEvent::SignIn, &name, None),
                TokenOutcome::Failed(error) => {
                    let failure = Some(error.to_string());
                    audit.record_sign_in(SignInEvent::SignIn, &name, failure);
                }
            }
        }
    });
}
