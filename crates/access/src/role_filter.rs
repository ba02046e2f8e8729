//! Lets the catalog use the policy's roles, which do not know each other.

use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::pattern::AllowDeny;
use weir_mcp::uri::CanonicalUri;

use crate::catalog::Filter;
use crate::policy::role::Role;

impl Filter for Role {
    fn allows(&self, kind: Kind, upstream: &UpstreamName, own: &str) -> bool {
        Role::allows(self, kind, upstream, own)
    }

    fn allows_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> bool {
        Role::allows_uri(self, upstream, uri)
    }

    fn resources(&self) -> &AllowDeny {
        &self.resources
    }

    fn reaches(&self, upstream: &UpstreamName) -> bool {
        Role::reaches(self, upstream)
    }
}
