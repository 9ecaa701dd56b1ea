#!/usr/bin/env python3
"""Writes crates/gateway-api/src/resource from the published CRDs of the Gateway API: the types of
all kinds that Leno reads, and the constraints of their schemas.

usage: scripts/gateway-api.py FOLDER    the folder `config/crd` of a release, which has `experimental`

Schemas of CRDs nest objects without names. TYPES below has the specification's name for each, by
the type and the field that contain it. The program fails if an object or pattern has no name there,
or if two objects of one name differ. CEL rules are not generated: crates/gateway-api/src/rules has
them, and README.md there says which are left out. Needs PyYAML and rustfmt.
"""

import glob
import json
import os
import re
import subprocess
import sys

import yaml

GROUP = "gateway.networking.k8s.io"
TARGET = "crates/gateway-api/src/resource"

# Kind -> plural, the module of its types.
KINDS = {
    "Gateway": "gateways",
    "GatewayClass": "gatewayclasses",
    "HTTPRoute": "httproutes",
    "GRPCRoute": "grpcroutes",
    "TLSRoute": "tlsroutes",
    "TCPRoute": "tcproutes",
    "ReferenceGrant": "referencegrants",
    "BackendTLSPolicy": "backendtlspolicies",
}

# Module -> its documentation and its types: `Type field: Type` names the object or the choice in a
# field, in the elements of a list or in the values of a mapping.
MODULES = {
    "shared": ("Parts of several kinds.", ["ParentReference", "BackendRef", "BackendObjectReference", "LocalObjectReference", "ObjectReference",
        "SecretObjectReference", "LabelSelector", "LabelSelectorRequirement", "FromNamespaces", "GatewayDefaultScope",
        "SessionPersistence", "SessionPersistenceType", "CookieConfig", "CookieLifetimeType", "HTTPHeaderFilter", "HTTPHeader",
        "HTTPRequestMirrorFilter", "Fraction"]),
    "gateway": ("`Gateway`.", ["GatewaySpec", "Listener", "ListenerTLSConfig", "TLSModeType", "AllowedRoutes", "RouteNamespaces",
        "RouteGroupKind", "GatewaySpecAddress", "GatewayInfrastructure", "LocalParametersReference", "AllowedListeners",
        "ListenerNamespaces", "GatewayTLSConfig", "GatewayBackendTLS", "FrontendTLSConfig", "TLSPortConfig", "TLSConfig",
        "FrontendTLSValidation", "FrontendValidationModeType", "RouteFromNamespaces"]),
    "gateway_class": ("`GatewayClass`.", ["GatewayClassSpec", "ParametersReference"]),
    "http_route": ("`HTTPRoute`.", ["HTTPRouteSpec", "HTTPRouteRule", "HTTPRouteMatch", "HTTPPathMatch", "PathMatchType", "HTTPHeaderMatch",
        "HeaderMatchType", "HTTPQueryParamMatch", "QueryParamMatchType", "HTTPBackendRef", "HTTPRouteTimeouts", "HTTPRouteRetry"]),
    "http_filter": ("Filters of `HTTPRoute`.", ["HTTPRouteFilter", "HTTPRouteFilterType", "HTTPRequestRedirectFilter", "HTTPPathModifier",
        "HTTPPathModifierType", "HTTPURLRewriteFilter", "HTTPCORSFilter", "HTTPExternalAuthFilter", "HTTPRouteExternalAuthProtocol",
        "GRPCAuthConfig", "HTTPAuthConfig", "ForwardBodyConfig"]),
    "grpc_route": ("`GRPCRoute`.", ["GRPCRouteSpec", "GRPCRouteRule", "GRPCRouteMatch", "GRPCMethodMatch", "GRPCMethodMatchType",
        "GRPCHeaderMatch", "GRPCHeaderMatchType", "GRPCRouteFilter", "GRPCRouteFilterType", "GRPCBackendRef"]),
    "l4_route": ("`TLSRoute` and `TCPRoute`.", ["TLSRouteSpec", "TLSRouteRule", "TCPRouteSpec", "TCPRouteRule"]),
    "reference_grant": ("`ReferenceGrant`.", ["ReferenceGrantSpec", "ReferenceGrantFrom", "ReferenceGrantTo"]),
    "backend_tls": ("`BackendTLSPolicy`.", ["BackendTLSPolicySpec", "LocalPolicyTargetReferenceWithSectionName", "BackendTLSPolicyValidation",
        "SubjectAltName", "SubjectAltNameType"]),
}
TYPES = """
*.parentRefs ParentReference
*.useDefaultGateways GatewayDefaultScope
*.extensionRef LocalObjectReference
*.requestHeaderModifier HTTPHeaderFilter
*.responseHeaderModifier HTTPHeaderFilter
*.requestMirror HTTPRequestMirrorFilter
*.sessionPersistence SessionPersistence
*.selector LabelSelector
*.backendRef BackendObjectReference
Gateway.spec GatewaySpec
GatewayClass.spec GatewayClassSpec
HTTPRoute.spec HTTPRouteSpec
GRPCRoute.spec GRPCRouteSpec
TLSRoute.spec TLSRouteSpec
TCPRoute.spec TCPRouteSpec
ReferenceGrant.spec ReferenceGrantSpec
BackendTLSPolicy.spec BackendTLSPolicySpec
GatewaySpec.listeners Listener
GatewaySpec.addresses GatewaySpecAddress
GatewaySpec.infrastructure GatewayInfrastructure
GatewaySpec.allowedListeners AllowedListeners
GatewaySpec.tls GatewayTLSConfig
GatewaySpec.defaultScope GatewayDefaultScope
Listener.tls ListenerTLSConfig
Listener.allowedRoutes AllowedRoutes
ListenerTLSConfig.mode TLSModeType
ListenerTLSConfig.certificateRefs SecretObjectReference
AllowedRoutes.namespaces RouteNamespaces
AllowedRoutes.kinds RouteGroupKind
RouteNamespaces.from RouteFromNamespaces
LabelSelector.matchExpressions LabelSelectorRequirement
GatewayInfrastructure.parametersRef LocalParametersReference
AllowedListeners.namespaces ListenerNamespaces
ListenerNamespaces.from FromNamespaces
GatewayTLSConfig.backend GatewayBackendTLS
GatewayTLSConfig.frontend FrontendTLSConfig
GatewayBackendTLS.clientCertificateRef SecretObjectReference
FrontendTLSConfig.default TLSConfig
FrontendTLSConfig.perPort TLSPortConfig
TLSPortConfig.tls TLSConfig
TLSConfig.validation FrontendTLSValidation
FrontendTLSValidation.caCertificateRefs ObjectReference
FrontendTLSValidation.mode FrontendValidationModeType
GatewayClassSpec.parametersRef ParametersReference
SessionPersistence.type SessionPersistenceType
SessionPersistence.cookieConfig CookieConfig
CookieConfig.lifetimeType CookieLifetimeType
HTTPHeaderFilter.set HTTPHeader
HTTPHeaderFilter.add HTTPHeader
HTTPRequestMirrorFilter.fraction Fraction
HTTPRouteSpec.rules HTTPRouteRule
HTTPRouteRule.matches HTTPRouteMatch
HTTPRouteRule.filters HTTPRouteFilter
HTTPRouteRule.backendRefs HTTPBackendRef
HTTPRouteRule.timeouts HTTPRouteTimeouts
HTTPRouteRule.retry HTTPRouteRetry
HTTPRouteMatch.path HTTPPathMatch
HTTPRouteMatch.headers HTTPHeaderMatch
HTTPRouteMatch.queryParams HTTPQueryParamMatch
HTTPPathMatch.type PathMatchType
HTTPHeaderMatch.type HeaderMatchType
HTTPQueryParamMatch.type QueryParamMatchType
HTTPBackendRef.filters HTTPRouteFilter
HTTPRouteFilter.type HTTPRouteFilterType
HTTPRouteFilter.requestRedirect HTTPRequestRedirectFilter
HTTPRouteFilter.urlRewrite HTTPURLRewriteFilter
HTTPRouteFilter.cors HTTPCORSFilter
HTTPRouteFilter.externalAuth HTTPExternalAuthFilter
HTTPRequestRedirectFilter.path HTTPPathModifier
HTTPURLRewriteFilter.path HTTPPathModifier
HTTPPathModifier.type HTTPPathModifierType
HTTPExternalAuthFilter.protocol HTTPRouteExternalAuthProtocol
HTTPExternalAuthFilter.grpc GRPCAuthConfig
HTTPExternalAuthFilter.http HTTPAuthConfig
HTTPExternalAuthFilter.forwardBody ForwardBodyConfig
GRPCRouteSpec.rules GRPCRouteRule
GRPCRouteRule.matches GRPCRouteMatch
GRPCRouteRule.filters GRPCRouteFilter
GRPCRouteRule.backendRefs GRPCBackendRef
GRPCRouteMatch.method GRPCMethodMatch
GRPCRouteMatch.headers GRPCHeaderMatch
GRPCMethodMatch.type GRPCMethodMatchType
GRPCHeaderMatch.type GRPCHeaderMatchType
GRPCBackendRef.filters GRPCRouteFilter
GRPCRouteFilter.type GRPCRouteFilterType
TLSRouteSpec.rules TLSRouteRule
TLSRouteRule.backendRefs BackendRef
TCPRouteSpec.rules TCPRouteRule
TCPRouteRule.backendRefs BackendRef
ReferenceGrantSpec.from ReferenceGrantFrom
ReferenceGrantSpec.to ReferenceGrantTo
BackendTLSPolicySpec.targetRefs LocalPolicyTargetReferenceWithSectionName
BackendTLSPolicySpec.validation BackendTLSPolicyValidation
BackendTLSPolicyValidation.caCertificateRefs LocalObjectReference
BackendTLSPolicyValidation.subjectAltNames SubjectAltName
SubjectAltName.type SubjectAltNameType
"""
TYPES = dict(line.split() for line in TYPES.strip().splitlines())

# Fields whose choice stays a text.
SCALAR_CHOICES = {"scheme", "method", "allowMethods"}

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN = LABEL + r"(\." + LABEL + ")*"
PATH = "(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+"
# Pattern -> its name, and what it expects.
PATTERNS = {
    rf"^$|^{DOMAIN}$": ("GROUP", "an API group such as `leno.dev`, or nothing"),
    "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$": ("KIND", "a kind such as `Service`: letters, digits and `-`"),
    rf"^(\*\.)?{DOMAIN}$": ("HOSTNAME", "a host in lower case, such as `shop.example` or `*.shop.example`"),
    f"^{DOMAIN}$": ("NAME", "lower-case letters, digits, `-` and `.`, such as `shop.example`"),
    f"^{LABEL}$": ("NAMESPACE", "a DNS label: a-z, 0-9 and `-`, at most 63 characters"),
    r"^[A-Za-z0-9!#$%&'*+\-.^_\x60|~]+$": ("HEADER_NAME", "the name of a header field: no spaces, `:` or other separators"),
    r"^[!-~]+([\t ]?[!-~]+)*$": ("HEADER_VALUE", "printable ASCII, without spaces at the ends and without two in a row"),
    f"^{PATH}$": ("PATH", "a path such as `/orders`"),
    "^([0-9]{1,5}(h|m|s|ms)){1,4}$": ("DURATION", "a duration such as `500ms`, `2s` or `1m30s`"),
    r"(^\*$)|(^(http(s)?):\/\/(((\*\.)?([a-zA-Z0-9\-]+\.)*[a-zA-Z0-9-]+|\*)(:([0-9]{1,5}))?)$)": (
        "ORIGIN", "`*`, or an origin such as `https://shop.example` or `https://*.example:8443`"),
    r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$": ("LABEL_VALUE", "letters, digits, `-`, `_` and `.`, with a letter or digit at each end"),
    rf"^Hostname|IPAddress|NamedAddress|{DOMAIN}\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$": (
        "ADDRESS_TYPE", "`IPAddress`, `Hostname`, `NamedAddress`, or a type such as `example.com/type`"),
    rf"^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$|{DOMAIN}\/[A-Za-z0-9]+$": (
        "PROTOCOL", "`HTTP`, `HTTPS`, `TLS`, `TCP`, `UDP`, or a protocol such as `example.com/name`"),
    rf"^{DOMAIN}\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$": ("CONTROLLER", "a domain and a path, such as `leno.dev/gateway`"),
    r"^(([^:/?#]+):)(//([^/?#]*))([^?#]*)(\?([^#]*))?(#(.*))?": ("URI", "an absolute URI such as `spiffe://mesh.example/ns/shop/sa/cart`"),
    rf"^(System|({DOMAIN}/([A-Za-z0-9][-A-Za-z0-9_.]{{0,61}})?[A-Za-z0-9]))$": ("WELL_KNOWN", "`System`, or a name such as `example.com/authorities`"),
}
HEAD = "// Generated by scripts/gateway-api.py from the CRDs of the Gateway API {release}, experimental channel.\n"
IGNORED = {"description", "x-kubernetes-validations", "x-kubernetes-map-type", "oneOf"}


def fail(message):
    sys.exit(f"scripts/gateway-api.py: {message}")


def bare(node):
    """A schema without its prose."""
    if isinstance(node, list):
        return [bare(element) for element in node]
    if not isinstance(node, dict):
        return node
    return {key: bare(value) for key, value in node.items() if key not in IGNORED or isinstance(value, dict)}


def snake(name):
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def rust_field(name):
    name = snake(name)
    return f"r#{name}" if name == "type" else name


def text(value):
    """A Rust literal of a text."""
    if "\\" not in value and '"' not in value:
        return f'"{value}"'
    return f'r#"{value}"#' if '"' in value else f'r"{value}"'


def constant(name):
    return snake(name).upper()


class Types:
    def __init__(self):
        self.objects = {}  # name -> schema
        self.choices = {}  # name -> values
        self.places = {}  # name -> the first path

    def name(self, parent, field):
        return TYPES.get(f"{parent}.{field}") or TYPES.get(f"*.{field}")

    def add(self, name, node, place):
        node = bare(node)
        if not name:
            fail(f"{place}: this object has no name in TYPES")
        if name in self.objects:
            if self.objects[name] != node:
                fail(f"{place}: differs from the other {name}, {self.places[name]}")
            return
        self.objects[name], self.places[name] = node, place
        for field, value in node["properties"].items():
            at = f"{place}.{field}"
            inner = value
            while inner["type"] == "array":
                inner, at = inner["items"], at + "[]"
            named = self.name(name, field)
            if inner["type"] == "object" and "properties" in inner:
                self.add(named, inner, at)
            elif "enum" in inner and inner["type"] == "string" and field not in SCALAR_CHOICES:
                if not named:
                    fail(f"{at}: this choice has no name in TYPES")
                if self.choices.setdefault(named, inner["enum"]) != inner["enum"]:
                    fail(f"{at}: differs from the other {named}, {self.places[named]}")
                self.places.setdefault(named, at)


def bounds(node):
    low, high = node.get("minimum", -(2**31)), node.get("maximum", 2**31 - 1)
    if "enum" in node:
        low, high = min(node["enum"]), max(node["enum"])
    return low, high


def rust_type(types, parent, field, node):
    kind = node["type"]
    if kind == "array":
        return f"Vec<{rust_type(types, parent, field, node['items'])}>"
    if kind == "object":
        return types.name(parent, field) if "properties" in node else "BTreeMap<String, String>"
    if kind == "boolean":
        return "bool"
    if kind == "integer":
        low, high = bounds(node)
        return "i32" if low < 0 else "u16" if high < 2**16 else "u32"
    return types.name(parent, field) if "enum" in node and field not in SCALAR_CHOICES else "String"


def schema(types, parent, field, node, version=None):
    """The Rust expression of a schema."""
    known = {"type", "default", "properties", "required", "items", "additionalProperties", "enum", "pattern", "format",
             "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "maxProperties",
             "x-kubernetes-list-type", "x-kubernetes-list-map-keys"}
    if strange := node.keys() - known:
        fail(f"{parent}.{field}: constraints that are not understood: {sorted(strange)}")
    kind = node["type"]
    if kind == "boolean":
        return "Schema::Boolean"
    if kind == "integer":
        if node.get("format") not in (None, "int32"):
            fail(f"{parent}.{field}: integers of format {node['format']}")
        if "enum" in node:
            return f"Schema::NumberOf(&{node['enum']})"
        low, high = bounds(node)
        return f"number({low}, {high})" if high < 2**31 - 1 else f"number({low}, MAX)"
    if kind == "string":
        if "enum" in node:
            return "Schema::Choice(&[" + ", ".join(text(value) for value in node["enum"]) + "])"
        low, high = node.get("minLength", 0), node.get("maxLength")
        high = "ANY" if high is None else high
        if "pattern" not in node:
            return f"text({low}, {high})"
        if node["pattern"] not in PATTERNS:
            fail(f"{parent}.{field}: the pattern has no name in PATTERNS: {node['pattern']}")
        return f"formed({low}, {high}, &{PATTERNS[node['pattern']][0]})"
    if kind == "object" and "properties" in node:
        return "Schema::Object(&" + constant(types.name(parent, field)) + ")"
    if kind == "object":
        most = node.get("maxProperties", "ANY")
        return f"map({most}, &const {{ {schema(types, parent, field, node['additionalProperties'])} }})"
    low, high = node.get("minItems", 0), node.get("maxItems", "ANY")
    unique = {"atomic": "None", "set": "Whole", "map": "By"}[node.get("x-kubernetes-list-type", "atomic")]
    if unique == "By":
        keys = node["x-kubernetes-list-map-keys"]
        if len(keys) != 1:
            fail(f"{parent}.{field}: a list with the keys {keys}")
        unique = f'By("{keys[0]}")'
    return f"list({low}, {high}, Unique::{unique}, &const {{ {schema(types, parent, field, node['items'])} }})"


def note(field, node, required):
    """The doc comment of a field."""
    parts = ["Required" if required else "Optional"]
    if "default" in node:
        value = json.dumps(node["default"], separators=(", ", ": "))
        parts = [f"Default: `{value}`" if len(value) < 60 else "Has a default"]
    low, high = (node.get(a) if node.get(a) is not None else node.get(b) for a, b in (("minItems", "minimum"), ("maxItems", "maximum")))
    if node["type"] == "array" and high:
        parts.append(f"at most {high}")
    elif node["type"] == "integer" and high:
        parts.append(f"{low} to {high}")
    return "; ".join(parts) + "."


def structs(types, name):
    node, place = types.objects[name], types.places[name]
    required = node.get("required", [])
    out = [f"/// `{place}`.", "#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]",
           '#[serde(rename_all = "camelCase", deny_unknown_fields)]', f"pub struct {name} {{"]
    for field, value in node["properties"].items():
        kind = rust_type(types, name, field, value)
        many = kind.startswith(("Vec<", "BTreeMap<"))
        out.append(f"/// {note(field, value, field in required)}")
        rename = rust_field(field).removeprefix("r#")
        camel = re.sub(r"_(\w)", lambda found: found[1].upper(), rename)
        attributes = [f'rename = "{field}"'] if camel != field else []
        if "default" not in value and field not in required or field in OPTIONAL.get(name, ()):
            if many:
                attributes.append("default")
            else:
                kind = f"Option<{kind}>"
        if attributes:
            out.append(f"#[serde({', '.join(attributes)})]")
        out.append(f"pub {rust_field(field)}: {kind},")
    return out + ["}", ""]


# Fields that are required in some served versions only: type -> fields.
OPTIONAL = {}


def object_schema(types, name, node, static):
    required = node.get("required", [])
    out = [f"pub(crate) static {static}: Object = Object {{", "fields: &["]
    for field, value in node["properties"].items():
        call = "required" if field in required else "optional"
        line = f'{call}("{field}", {schema(types, name, field, value)})'
        if "default" in value:
            line += f".or({text(json.dumps(value['default'], separators=(',', ':')))})"
        out.append(line + ",")
    return out + ["],", "};", ""]


def choice(types, name):
    out = [f"/// `{types.places[name]}`.", "#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]", f"pub enum {name} {{"]
    for value in types.choices[name]:
        if not re.fullmatch(r"[A-Z]\w*", value):
            fail(f"{name}: `{value}` is no name of a variant")
        out += [f"/// `{value}`.", f"{value},"]
    return out + ["}", ""]


def head(module, release):
    about = MODULES[module][0] if module in MODULES else MORE[module]
    return HEAD.format(release=release) + f"//! {about}\n\n"


MORE = {"patterns": "Patterns of texts.", "mod": "The kinds and their types, as the specification names them."}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    types, releases = Types(), set()
    variants = {}  # kind -> [(version, spec)]
    for kind, plural in KINDS.items():
        with open(f"{sys.argv[1]}/experimental/{GROUP}_{plural}.yaml", encoding="utf-8") as file:
            crd = yaml.safe_load(file)
        releases.add(crd["metadata"]["annotations"]["gateway.networking.k8s.io/bundle-version"])
        served = [version for version in crd["spec"]["versions"] if version["served"]]
        # The newest version gives the types.
        specs = [(version["name"], bare(version["schema"]["openAPIV3Schema"]["properties"]["spec"])) for version in served]
        types.add(TYPES[f"{kind}.spec"], specs[0][1], f"{kind}.spec")
        variants[kind] = (crd["spec"]["scope"], specs)
    release = releases.pop()
    modules = {name: module for module, (_, names) in MODULES.items() for name in names}
    if missing := (types.objects.keys() | types.choices.keys()) - modules.keys():
        fail(f"types without a module: {sorted(missing)}")
    if strange := modules.keys() - types.objects.keys() - types.choices.keys():
        fail(f"there are no such types: {sorted(strange)}")
    os.makedirs(TARGET, exist_ok=True)
    for old in glob.glob(f"{TARGET}/*.rs"):
        os.remove(old)

    # Versions whose constraints differ from those of the newest one.
    others = {}
    for kind, (_, specs) in variants.items():
        name = TYPES[f"{kind}.spec"]
        for version, spec in specs[1:]:
            if spec == specs[0][1]:
                continue
            if spec["properties"].keys() != specs[0][1]["properties"].keys():
                fail(f"{kind} {version} has other fields than {specs[0][0]}")
            others[kind, version] = spec
            OPTIONAL[name] = set(OPTIONAL.get(name, ())) | set(specs[0][1]["required"]) - set(spec.get("required", []))

    files = {}
    for module, (_, names) in MODULES.items():
        lines = []
        for name in sorted(names, key=lambda name: list(modules).index(name)):
            if name in types.choices:
                lines += choice(types, name)
                continue
            lines += structs(types, name)
            lines += object_schema(types, name, types.objects[name], constant(name))
            for (kind, version), spec in others.items():
                if TYPES[f"{kind}.spec"] == name:
                    lines += object_schema(types, name, spec, f"{constant(name)}_{version.upper()}")
        files[module] = lines
    files["patterns"] = []
    for pattern, (name, words) in PATTERNS.items():
        files["patterns"].append(f"pub(crate) static {name}: Pattern = Pattern::new({text(pattern)}, {text(words)});\n")
    names = ", ".join(f"&{name}" for name, _ in PATTERNS.values())
    files["patterns"].append(f"/// All of them.\n#[cfg(test)]\npub(crate) static PATTERNS: &[&Pattern] = &[{names}];")

    root = [f"mod {module};" for module in sorted([*MODULES, "patterns"])] + [""]
    for module, (_, names) in sorted(MODULES.items()):
        root.append(f"pub use {module}::{{{', '.join(sorted(names))}}};")
    root += ["pub(crate) use patterns::{HOSTNAME, LABEL_VALUE, NAME, NAMESPACE, PATH};", "#[cfg(test)]",
             "pub(crate) use patterns::PATTERNS;"]
    names = ", ".join(f'"{kind}"' for kind in KINDS)
    root += ["", "/// The names of all kinds.", f"pub const KIND_NAMES: [&str; {len(KINDS)}] = [{names}];"]
    root += ["", "/// All kinds.", "pub(crate) static KINDS: &[Kind] = &["]
    for kind, (scope, specs) in variants.items():
        name = TYPES[f"{kind}.spec"]
        entries = []
        for version, _ in specs:
            static = constant(name) + (f"_{version.upper()}" if (kind, version) in others else "")
            entries.append(f'("{version}", &{modules[name]}::{static})')
        root.append(f'Kind {{ name: "{kind}", is_namespaced: {str(scope == "Namespaced").lower()}, versions: &[{", ".join(entries)}] }},')
    root += ["];", ""]
    for kind, (_, specs) in variants.items():
        root += [f"/// `{kind}`.", "#[derive(Clone, Debug, PartialEq, Eq)]", f"pub struct {kind} {{", "/// Name, namespace and labels.",
                 "pub metadata: ObjectMeta,", "/// The content.", f"pub spec: {TYPES[f'{kind}.spec']},", "}", ""]
    root += ["/// A resource of any kind.", "#[derive(Clone, Debug, PartialEq, Eq)]",
             '#[expect(clippy::large_enum_variant, reason = "a mesh keeps few, each on the heap")]', "pub enum Resource {"]
    root += [line for kind in KINDS for line in (f"/// `{kind}`.", f"{kind}({kind}),")] + ["}", "", "impl Resource {"]
    root += ["/// Its `kind`.", "pub fn kind(&self) -> &'static str {", "match self {"]
    root += [f'Self::{kind}(_) => "{kind}",' for kind in KINDS] + ["}", "}", "", "/// Its name, namespace and labels.",
             "pub fn metadata(&self) -> &ObjectMeta {", "match self {"]
    root += [f"Self::{kind}(it) => &it.metadata," for kind in KINDS] + ["}", "}", "",
             "/// Takes checked content as a resource of this kind.",
             "pub(crate) fn of(kind: &str, metadata: ObjectMeta, spec: serde_json::Value) -> Result<Self, serde_json::Error> {",
             "use serde_json::from_value;", "Ok(match kind {"]
    kinds = list(KINDS)
    root += [f'"{kind}" => Self::{kind}({kind} {{ metadata, spec: from_value(spec)? }}),' for kind in kinds[:-1]]
    root += [f"_ => Self::{kinds[-1]}({kinds[-1]} {{ metadata, spec: from_value(spec)? }}),", "})", "}", "}"]
    files["mod"] = root

    for module, lines in files.items():
        uses = []
        body = "\n".join(lines)
        if module == "patterns":
            uses = ["crate::pattern::Pattern"]
        elif module == "mod":
            uses = ["crate::metadata::ObjectMeta", "crate::schema::Kind"]
        else:
            for name, home in modules.items():
                if home != module:
                    if re.search(rf"(?<!\w){name}(?!\w)", re.sub(r'".*?"|//.*', "", body)):
                        uses.append(f"super::{home}::{name}")
                    if re.search(rf"&{constant(name)}\)", body):
                        uses.append(f"super::{home}::{constant(name)}")
            for _, (name, _) in PATTERNS.items():
                if f"&{name})" in body:
                    uses.append(f"super::patterns::{name}")
            for name in ("Object", "Schema", "Unique", "ANY", "MAX", "formed", "list", "map", "number", "optional", "required", "text"):
                if re.search(rf"(?<![\w:.]){name}(?!\w)", re.sub(r'"[^"]*"|//.*', "", body)):
                    uses.append(f"crate::schema::{name}")
            if "BTreeMap" in body:
                uses.append("std::collections::BTreeMap")
            uses.append("serde::Deserialize")
        grouped = {}
        for use in uses:
            path, name = use.rsplit("::", 1)
            grouped.setdefault(path, []).append(name)
        imports = [f"use {path}::{{{', '.join(sorted(names))}}};" for path, names in sorted(grouped.items())]
        with open(f"{TARGET}/{module}.rs", "w", encoding="utf-8") as file:
            file.write(head(module, release) + "\n".join(imports) + "\n\n" + body + "\n")
    paths = sorted(f"{TARGET}/{module}.rs" for module in files)
    subprocess.run(["rustfmt", "--edition", "2024", f"{TARGET}/mod.rs"], check=True)
    for path in paths:
        with open(path, encoding="utf-8") as file:
            count = sum(1 for _ in file)
        if count > 550:
            fail(f"{path} has {count} lines: divide its module in MODULES")


main()
