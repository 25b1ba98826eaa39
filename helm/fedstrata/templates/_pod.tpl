{{/* A pod's security context: the tier's keys replace the chart's. (dict "root" $ "component" "lps"); `test` has no tier. */}}
{{- define "fedstrata.podSecurityContext" -}}
{{- $tier := get .root.Values .component | default dict -}}
{{ mergeOverwrite (deepCopy (.root.Values.podSecurityContext | default dict)) ($tier.podSecurityContext | default dict) | toYaml }}
{{- end }}

{{/* Alive is /healthz, ready is /readyz. The startup probe is one command that waits until the process says that it is ready,
     a minute at most once it answers, and probes.startupSeconds in all. Asked by HTTP, a process that is still starting would
     give a warning (Unhealthy) every two seconds. */}}
{{- define "fedstrata.probes" -}}
{{- $probes := .Values.probes }}
startupProbe:
  exec:
    command:
      - python3
      - -ISc
      - |
        import http.client, time
        end = None
        while end is None or time.monotonic() < end:
            try:
                asked = http.client.HTTPConnection("localhost", {{ .Values.ports.http }}, timeout=10)
                asked.request("GET", "/readyz")
                if asked.getresponse().status == 200:
                    break
                end = end or time.monotonic() + 60
            except OSError:
                pass
            time.sleep(0.2)
  timeoutSeconds: {{ $probes.startupSeconds }}
  failureThreshold: 1
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: {{ $probes.livenessPeriodSeconds }}
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: {{ $probes.readinessPeriodSeconds }}
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: 3
{{- end }}

{{/* A tier's resources: as given, without those that are null. If requests have no memory, they get the memory that
     memoryMi gives the pod. If limits have no memory either, they get twice as much, at least 1 GiB. */}}
{{- define "fedstrata.resources" -}}
{{- $tier := index .root.Values .component -}}
{{- $resources := deepCopy ($tier.resources | default dict) -}}
{{- range $kind := list "requests" "limits" -}}
{{- $amounts := get $resources $kind | default dict -}}
{{- range $name, $amount := $amounts }}{{ if kindIs "invalid" $amount }}{{ $_ := unset $amounts $name }}{{ end }}{{ end -}}
{{- end -}}
{{- if and $tier.memoryMi (not (hasKey ($resources.requests | default dict) "memory")) -}}
{{- $devices := ternary (int (get $tier "devicesPerPod" | default 0)) 0 (eq .component "device") -}}
{{- $mi := add $tier.memoryMi.pod (mul $devices (get $tier.memoryMi "device" | default 0)) -}}
{{- $limits := dict "memory" (printf "%dMi" (max 1024 (mul 2 $mi))) | merge ($resources.limits | default dict) -}}
{{- $resources = mergeOverwrite $resources (dict "requests" (dict "memory" (printf "%dMi" $mi)) "limits" $limits) -}}
{{- end -}}
{{- with $tier.resourceClaims -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names (dict "name" .name) }}{{ end -}}
{{- $resources = set $resources "claims" $names -}}
{{- end -}}
{{ toYaml $resources }}
{{- end }}

{{/* The claims of a tier's pod, from which its container takes GPUs. */}}
{{- define "fedstrata.resourceClaims" -}}
{{- with (index .root.Values .component).resourceClaims -}}
{{- if not (include "fedstrata.since" (dict "root" $.root "version" "1.34")) }}{{ fail (printf "%s.resourceClaims needs Kubernetes 1.34, and this is %s: set %s.resources.limits instead, such as nvidia.com/gpu: 1" $.component $.root.Capabilities.KubeVersion.Version $.component) }}{{ end -}}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The one container of a tier: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.container" -}}
{{- $root := .root -}}
{{- $tier := index $root.Values .component -}}
{{- $ports := $root.Values.ports -}}
{{- if eq (int $ports.grpc) (int $ports.http) }}{{ fail (printf "ports.grpc and ports.http are both %d, and a process cannot listen twice at one port: change one of the two" (int $ports.grpc)) }}{{ end -}}
name: {{ .component }}
image: {{ include "fedstrata.image" . | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
args:
  {{- include (printf "fedstrata.%s.args" .component) $root | trim | nindent 2 }}
env:
  - name: FEDSTRATA_POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: FEDSTRATA_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- with include (printf "fedstrata.%s.env" .component) $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if include "fedstrata.hasTls" . }}
  - name: FEDSTRATA_TLS
    value: {{ include "fedstrata.tlsPath" . }}
  - name: FEDSTRATA_REVOKED
    value: /revoked/revoked.txt
  {{- with $root.Values.outside.serverDomain }}
  - name: FEDSTRATA_SERVER_DOMAIN
    value: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- with $root.Values.traces.endpoint }}
  - name: OTEL_EXPORTER_OTLP_ENDPOINT
    value: {{ . | quote }}
  {{- end }}
  {{- with $tier.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $tier.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "fedstrata.codeFolder" $root }}
# Python imports modules from the folder in which a process starts.
workingDir: {{ . }}
{{- end }}
ports:
  {{- if ne .component "device" }}
  - {name: grpc, containerPort: {{ $root.Values.ports.grpc }}, protocol: TCP}
  {{- end }}
  - {name: http, containerPort: {{ $root.Values.ports.http }}, protocol: TCP}
{{- include "fedstrata.probes" $root }}
resources:
  {{- include "fedstrata.resources" . | nindent 2 }}
securityContext:
  {{- toYaml $root.Values.containerSecurityContext | nindent 2 }}
# If a container fails, the last lines of its log become the reason that `kubectl describe pod` shows.
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: experiment
    mountPath: /etc/fedstrata
    readOnly: true
  - name: tmp
    mountPath: /tmp
  {{- with include (printf "fedstrata.%s.mounts" .component) $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "fedstrata.tlsMount" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "fedstrata.codeMount" $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $tier.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The spread of LPSs over zones, for each release separately. */}}
{{- define "fedstrata.topologySpread" -}}
{{- $spread := .root.Values.lps.topologySpread -}}
{{- if and (eq .component "lps") $spread.topologyKey }}
topologySpreadConstraints:
  - maxSkew: {{ $spread.maxSkew }}
    topologyKey: {{ $spread.topologyKey }}
    whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "fedstrata.selectorLabels" . | nindent 8 }}
{{- end }}
{{- end }}

{{/* Where a tier's pods may run. A DaemonSet runs on exactly the nodes that the experiment names, unless told otherwise. */}}
{{- define "fedstrata.affinity" -}}
{{- $tier := index .root.Values .component -}}
{{- if $tier.affinity }}
affinity:
  {{- toYaml $tier.affinity | nindent 2 }}
{{- else if and (eq .component "device") (eq .root.Values.device.kind "DaemonSet") }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range (fromJson (include "fedstrata.plan" .root)).names }}
        - matchFields:
            - {key: metadata.name, operator: In, values: [{{ . | quote }}]}
        {{- end }}
{{- end }}
{{- end }}

{{/* The pod of a tier: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.podTemplate" -}}
{{- $root := .root -}}
{{- $tier := index $root.Values .component -}}
metadata:
  labels:
    {{- include "fedstrata.labels" . | nindent 4 }}
    {{- with $tier.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A new experiment replaces the pods.
    checksum/experiment: {{ include "fedstrata.experiment" $root | sha256sum }}
    {{- with $root.Values.code.files }}
    checksum/code: {{ toYaml . | sha256sum }}
    {{- end }}
    {{- with $root.Values.again }}
    fedstrata.io/again: {{ . | quote }}
    {{- end }}
    {{- if include "fedstrata.hasTls" . }}
    # The way certificates are made, and the authority. If one of them changes, all pods are replaced, because old and new
    # pods would not trust each other.
    checksum/tls: {{ printf "%s %s" (include "fedstrata.tlsMode" $root) $root.Values.tls.authority | sha256sum }}
    {{- end }}
    {{- if and (eq .component "gps") (include "fedstrata.tls" $root) }}
    # The Secret with the certificate that `fedstrata status` and `collect` use for this GPS.
    fedstrata.io/operator-certificate: {{ include "fedstrata.tlsSecret" (dict "root" $root "who" "operator") }}
    {{- end }}
    {{- with $tier.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with include "fedstrata.serviceAccount" . }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  automountServiceAccountToken: {{ eq .component "gps" }}
  # Otherwise Kubernetes adds variables such as FEDSTRATA_GPS_PORT, which Fedstrata would read as options.
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- with $tier.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with include "fedstrata.resourceClaims" . | trim }}
  resourceClaims:
    {{- . | nindent 4 }}
  {{- end }}
  {{- with $tier.priorityClassName | default $root.Values.queue.priorityClass }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $tier.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "fedstrata.podSecurityContext" . | nindent 4 }}
  {{- with $tier.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $tier.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "fedstrata.affinity" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "fedstrata.topologySpread" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "fedstrata.initContainers" . | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - {{ include "fedstrata.container" . | nindent 6 | trim }}
  volumes:
    - name: experiment
      configMap:
        name: {{ include "fedstrata.fullname" $root }}-experiment
    - name: tmp
      emptyDir: {sizeLimit: {{ $root.Values.nodeDisk.tmp | quote }}}
    {{- with include (printf "fedstrata.%s.volumes" .component) $root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "fedstrata.tlsVolume" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "fedstrata.codeVolume" $root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "fedstrata.extraVolumes" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}
