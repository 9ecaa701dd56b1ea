//! Each request must name its tenant, and this extension adds the plan of that tenant.
//!
//! The configuration has a line for each tenant: `name = plan`. Requests without `x-tenant`, or
//! with an unknown tenant, get 403. The extension adds `x-plan` to all others, and `x-served-for`
//! to their responses.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};
use std::collections::HashMap;
use std::rc::Rc;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Plugin::default()));
}}

type Plans = Rc<HashMap<String, String>>;

#[derive(Default)]
struct Plugin {
    plans: Plans,
}

impl Context for Plugin {}

impl RootContext for Plugin {
    /// `leno check` calls this too, so it finds a bad configuration before any request.
    fn on_configure(&mut self, _: usize) -> bool {
        let configuration = self.get_plugin_configuration().unwrap_or_default();
        let Ok(text) = String::from_utf8(configuration) else {
            log::error!("the configuration is not UTF-8");
            return false;
        };
        let mut plans = HashMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let Some((name, plan)) = line.split_once('=') else {
                log::error!("expected `name = plan`, found `{line}`");
                return false;
            };
            plans.insert(name.trim().to_owned(), plan.trim().to_owned());
        }
        self.plans = Rc::new(plans);
        true
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request { plans: self.plans.clone(), tenant: None }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Request {
    plans: Plans,
    tenant: Option<String>,
}

impl Context for Request {}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        let tenant = self.get_http_request_header("x-tenant").unwrap_or_default();
        let Some(plan) = self.plans.get(&tenant) else {
            let path = self.get_property(vec!["request", "url_path"]).unwrap_or_default();
            log::info!("{} is for no known tenant", String::from_utf8_lossy(&path));
            self.send_http_response(403, vec![("x-reason", "tenant")], Some(b"which tenant is this for?\n"));
            return Action::Pause;
        };
        self.set_http_request_header("x-plan", Some(plan));
        self.tenant = Some(tenant);
        Action::Continue
    }

    /// The same instance handles the response, if the policy says `phase: both`.
    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        if let Some(tenant) = &self.tenant {
            self.set_http_response_header("x-served-for", Some(tenant));
        }
        Action::Continue
    }
}
