{{/* Access for devices that are not pods: the addresses that they call, and who may call. */}}

{{/* The port of an address host:port or host:port+, for the LPS of a number: (dict "address" "…" "number" 2). */}}
{{- define "fedstrata.portOf" -}}
{{- $port := regexFind "[0-9]+\\+?$" .address -}}
{{- if hasSuffix "+" $port }}{{ add (trimSuffix "+" $port | int) .number }}{{ else }}{{ $port }}{{ end -}}
{{- end }}

{{/* The part of an address before the port, with the pod's name in place of $(FEDSTRATA_POD_NAME): (dict "address" "…" "pod" "…"). */}}
{{- define "fedstrata.hostOf" -}}
{{- regexReplaceAll ":[0-9]+\\+?$" .address "" | replace "$(FEDSTRATA_POD_NAME)" .pod -}}
{{- end }}

{{/* The address of LPSs. With outside.serverDomain it is the same for all servers. */}}
{{- define "fedstrata.outsideLps" -}}
{{ ternary .Values.outside.lps .Values.outside.gps (empty .Values.outside.serverDomain) }}
{{- end }}

{{/* The address of an LPS that devices get: the outside address if all devices use it, or the pod's name in the headless Service. */}}
{{- define "fedstrata.lpsAddress" -}}
{{- if .Values.outside.type -}}
{{ include "fedstrata.outsideLps" . }}
{{- else -}}
$(FEDSTRATA_POD_NAME).{{ include "fedstrata.fullname" . }}-lps.{{ .Release.Namespace }}.svc:{{ .Values.ports.grpc }}
{{- end -}}
{{- end }}

{{/* Refuses an incomplete section `outside`, or one that does not say who may call. Gives the number of LPSs. */}}
{{- define "fedstrata.checkOutside" -}}
{{- $outside := .Values.outside -}}
{{- $lps := (fromJson (include "fedstrata.plan" .)).lps -}}
{{- include "fedstrata.checkServerDomain" . -}}
{{- $address := include "fedstrata.outsideLps" . -}}
{{- if not (and $outside.gps $address) }}{{ fail (printf "outside.type needs %s: host:port for devices outside of the cluster" (ternary "outside.gps and outside.lps" "outside.gps" (empty $outside.serverDomain))) }}{{ end -}}
{{- if not $outside.from }}{{ fail "outside.from is empty: give the peers that may call, as in a NetworkPolicy, such as [{ipBlock: {cidr: 10.1.0.0/16}}]" }}{{ end -}}
{{- if eq (toString $lps) "auto" }}{{ fail "outside.lps needs an address for each LPS: set lps.replicas to the largest possible number of LPSs, or set topology.lps in the experiment" }}{{ end -}}
{{- $counts := hasSuffix "+" $outside.lps -}}
{{- if and (gt (int $lps) 1) (not $counts) (not $outside.serverDomain) (not (contains "$(FEDSTRATA_POD_NAME)" $outside.lps)) }}{{ fail (printf "outside.lps %s is one address for %d LPSs: let ports count up (%s+), or put $(FEDSTRATA_POD_NAME) into the name" $outside.lps (int $lps) $outside.lps) }}{{ end -}}
{{- if and (eq $outside.type "Gateway") (or $counts (not $outside.gateway.name)) }}{{ fail "outside.type Gateway needs outside.gateway.name, and names rather than ports to tell LPSs apart: outside.serverDomain or, with tls.mode off, outside.lps $(FEDSTRATA_POD_NAME).fl.example.org:80" }}{{ end -}}
{{- $fitting := dict -}}
{{- range $number := until (add1 $lps | int) -}}
{{- $port := include "fedstrata.portOf" (dict "address" (ternary $outside.gps $address (eq $number (int $lps))) "number" $number) | int -}}
{{- if and (ge $port 30000) (le $port 32767) }}{{ $_ := set $fitting (toString $port) true }}{{ end -}}
{{- end -}}
{{- if and (eq $outside.type "NodePort") (le (len $fitting) (int $lps)) }}{{ fail "outside.type NodePort: give ports from 30000 to 32767, each to one server, and let the ports of LPSs count up, such as outside.gps node.example.org:30051, outside.lps node.example.org:30061+" }}{{ end -}}
{{- $lps -}}
{{- end }}

{{/* Refuses outside.serverDomain if no proxy reads server names, and its absence if a proxy needs them. */}}
{{- define "fedstrata.checkServerDomain" -}}
{{- $outside := .Values.outside -}}
{{- $domain := $outside.serverDomain -}}
{{- $reads := has $outside.type (list "ClusterIP" "Gateway") -}}
{{- if and $domain (not (include "fedstrata.tls" .)) }}{{ fail (printf "outside.serverDomain is %s, but with tls.mode off callers send no server name: choose another tls.mode, or leave outside.serverDomain out and take outside.type LoadBalancer, NodePort or Gateway" $domain) }}{{ end -}}
{{- if and $domain (not $reads) }}{{ fail (printf "outside.serverDomain is %s, but outside.type %s tells servers apart by addresses: leave outside.serverDomain out, or take outside.type Gateway or ClusterIP" $domain $outside.type) }}{{ end -}}
{{- if and $domain $outside.lps }}{{ fail (printf "outside.lps is %s, but with outside.serverDomain all servers are at outside.gps: leave outside.lps out" $outside.lps) }}{{ end -}}
{{- if and $reads (not $domain) (or (include "fedstrata.tls" .) (eq $outside.type "ClusterIP")) }}{{ fail (printf "outside.type %s tells servers apart by their names in TLS: set outside.serverDomain, such as %s.fl.example.org%s" $outside.type .Release.Name (ternary "" ", and tls.mode to another than off" (ne (include "fedstrata.tls" .) ""))) }}{{ end -}}
{{- end }}

{{/* The ports of all LPSs' addresses, as JSON. */}}
{{- define "fedstrata.outsidePorts" -}}
{{- $ports := list -}}
{{- range $number := until (include "fedstrata.checkOutside" . | int) -}}
{{- $ports = append $ports (include "fedstrata.portOf" (dict "address" (include "fedstrata.outsideLps" $) "number" $number) | int) -}}
{{- end -}}
{{ $ports | uniq | toJson }}
{{- end }}

{{/* The Service of one pod: (dict "root" $ "component" "lps" "pod" "demo-fedstrata-lps-0" "port" 50061). */}}
{{- define "fedstrata.outsideService" -}}
{{- $outside := .root.Values.outside }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .pod }}-outside
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "fedstrata.labels" . | nindent 4 }}
  {{- with $outside.annotations }}
  annotations:
    {{- toYaml . | replace "$(FEDSTRATA_POD_NAME)" $.pod | nindent 4 }}
  {{- end }}
spec:
  {{- $inside := has $outside.type (list "ClusterIP" "Gateway") }}
  type: {{ ternary "ClusterIP" $outside.type $inside }}
  selector:
    {{- include "fedstrata.selectorLabels" . | nindent 4 }}
    statefulset.kubernetes.io/pod-name: {{ .pod }}
  {{- if not $inside }}
  externalTrafficPolicy: {{ $outside.externalTrafficPolicy }}
  {{- end }}
  {{- if eq $outside.type "LoadBalancer" }}
  {{- with $outside.loadBalancerClass }}
  loadBalancerClass: {{ . | quote }}
  {{- end }}
  {{- with include "fedstrata.sourceRanges" .root }}
  loadBalancerSourceRanges:
    {{- . | nindent 4 }}
  {{- end }}
  {{- end }}
  ports:
    - name: grpc
      port: {{ .port }}
      targetPort: grpc
      protocol: TCP
      {{- if not (include "fedstrata.tls" .root) }}
      appProtocol: kubernetes.io/h2c
      {{- end }}
      {{- if eq $outside.type "NodePort" }}
      nodePort: {{ .port }}
      {{- end }}
{{- end }}

{{/* The address ranges in outside.from. */}}
{{- define "fedstrata.sourceRanges" -}}
{{- range .Values.outside.from }}
{{- with .ipBlock }}
- {{ .cidr | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The newest version of a kind of route that this Kubernetes serves; v1 if this is unknown. TLSRoutes are v1 since version 1.5 of
     the Gateway API, and experimental before: (dict "root" $ "kind" "TLSRoute"). */}}
{{- define "fedstrata.routeVersion" -}}
{{- $version := "v1" -}}
{{- range list "v1alpha2" "v1alpha3" "v1" -}}
{{- if $.root.Capabilities.APIVersions.Has (printf "gateway.networking.k8s.io/%s/%s" . $.kind) }}{{ $version = . }}{{ end -}}
{{- end -}}
{{- $version -}}
{{- end }}

{{/* The route of one pod through a Gateway: (dict "root" $ "component" "lps" "pod" "…" "port" 443 "host" "…"). */}}
{{- define "fedstrata.outsideRoute" -}}
{{- $gateway := .root.Values.outside.gateway }}
---
{{- $kind := ternary "TLSRoute" "GRPCRoute" (ne (include "fedstrata.tls" .root) "") }}
apiVersion: gateway.networking.k8s.io/{{ include "fedstrata.routeVersion" (dict "root" .root "kind" $kind) }}
kind: {{ $kind }}
metadata:
  name: {{ .pod }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "fedstrata.labels" . | nindent 4 }}
spec:
  parentRefs:
    - name: {{ $gateway.name | quote }}
      {{- with $gateway.namespace }}
      namespace: {{ . | quote }}
      {{- end }}
      {{- with $gateway.sectionName }}
      sectionName: {{ . | quote }}
      {{- end }}
  hostnames: [{{ .host | quote }}]
  rules:
    - backendRefs:
        - {name: {{ .pod }}-outside, port: {{ .port }}}
{{- end }}
