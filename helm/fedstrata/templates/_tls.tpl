{{/* The certificates of pods. Each process has its own Secret, RELEASE-tls-WHO, with ca.crt, tls.crt and tls.key. `fedstrata up` (generated),
     cert-manager or you (secret) make the Secrets. docs/decisions/certificates-in-pods.md says why. */}}

{{/* The value of tls.mode. YAML reads a plain `off` as false. */}}
{{- define "fedstrata.tlsMode" -}}
{{- $mode := .Values.tls.mode -}}
{{- if kindIs "bool" $mode }}{{ $mode = "off" }}{{ end -}}
{{- if not $mode -}}
{{- fail "tls.mode is not given. It says how pods prove who they are. Install with `fedstrata up`, which makes certificates (generated); with helm alone set tls.mode to cert-manager, to secret for certificates that you make, or to off: then anybody in the network can read and alter everything" -}}
{{- end -}}
{{- if and (ne $mode "cert-manager") .Values.tls.certManager.issuer.name }}{{ fail (printf "tls.certManager.issuer is given, but tls.mode is %s: set tls.mode to cert-manager, or leave the issuer out" $mode) }}{{ end -}}
{{- $mode -}}
{{- end }}

{{/* Do pods speak TLS? */}}
{{- define "fedstrata.tls" -}}
{{- if ne (include "fedstrata.tlsMode" .) "off" }}true{{ end -}}
{{- end }}

{{/* The domain in the certificates: namespace and release, because two namespaces may have releases with the same name. */}}
{{- define "fedstrata.tlsDomain" -}}
{{ .Release.Name }}.{{ .Release.Namespace }}
{{- end }}

{{/* The Secret of a process: (dict "root" $ "who" "lps-0"). */}}
{{- define "fedstrata.tlsSecret" -}}
{{ .root.Release.Name }}-tls-{{ .who }}
{{- end }}

{{/* The number of LPSs with certificates: as many as the run begins with, or as it may need later. */}}
{{- define "fedstrata.tlsLpsCount" -}}
{{- $plan := fromJson (include "fedstrata.plan" .) -}}
{{- $given := .Values.tls.lps -}}
{{- if and (not (kindIs "invalid" $given)) (ne (toString $plan.lps) "auto") (lt (int $given) (int $plan.lps)) -}}
{{- fail (printf "tls.lps is %d, but experiment %s begins with %d LPSs, and an LPS without a certificate cannot start. Set tls.lps to null, or to at least this number" (int $given) $plan.name (int $plan.lps)) -}}
{{- end -}}
{{- if not (kindIs "invalid" $given) }}{{ int $given -}}
{{- else if eq (toString $plan.lps) "auto" }}{{ min 16 (int $plan.devices) -}}
{{- else }}{{ int $plan.lps }}{{ end -}}
{{- end }}

{{/* The processes of a tier that have a certificate, as JSON: a list of {who, pod, names}. `pod` is the folder that only its pod mounts. */}}
{{- define "fedstrata.tlsHolders" -}}
{{- $root := .root -}}
{{- $full := include "fedstrata.fullname" $root -}}
{{- $plan := fromJson (include "fedstrata.plan" $root) -}}
{{- $holders := list -}}
{{- if eq .component "lps" -}}
  {{- range $number := until (include "fedstrata.tlsLpsCount" $root | int) -}}
  {{- $holders = append $holders (dict "who" (printf "lps-%d" $number) "pod" (printf "%s-lps-%d" $full $number) "names" (list (printf "lps/lps-%d" $number))) -}}
  {{- end -}}
{{- else if eq $root.Values.device.kind "DaemonSet" -}}
  {{- range $plan.names -}}
  {{- $holders = append $holders (dict "who" (printf "device-%s" .) "pod" . "names" (list (printf "device/%s" .))) -}}
  {{- end -}}
{{- else -}}
  {{- $perPod := int $root.Values.device.devicesPerPod -}}
  {{- $last := sub (int $plan.devices) 1 | int -}}
  {{- range $ordinal := until (include "fedstrata.deviceReplicas" $root | int) -}}
  {{- $first := mul $ordinal $perPod | int -}}
  {{- $ends := list $first (min $last (sub (add $first $perPod) 1) | int) | uniq -}}
  {{- $ids := list -}}
  {{- range $ends -}}
  {{- $digits := toString . -}}
  {{- $width := max 3 (len (toString $last)) | int -}}
  {{- $ids = append $ids (printf "device-%s%s" (repeat (sub $width (len $digits) | int) "0") $digits) -}}
  {{- end -}}
  {{- $names := list (printf "device/%s" (join "_" $ids)) -}}
  {{- if $plan.names -}}
  {{- $names = list -}}
  {{- range slice $plan.names $first (add1 (last $ends) | int) }}{{ $names = append $names (printf "device/%s" .) }}{{ end -}}
  {{- end -}}
  {{- $holders = append $holders (dict "who" (printf "device-%d" $ordinal) "pod" (printf "%s-device-%d" $full $ordinal) "names" $names) -}}
  {{- end -}}
{{- end -}}
{{- dict "holders" $holders | toJson -}}
{{- end }}

{{/* The files of a Secret under the names that processes read. `in` is a folder with a slash at its end: (dict "in" "pod/"). */}}
{{- define "fedstrata.tlsItems" -}}
- {key: ca.crt, path: {{ .in }}ca.pem}
- {key: tls.crt, path: {{ .in }}cert.pem}
- {key: tls.key, path: {{ .in }}key.pem}
{{- end }}

{{/* The mount of a process's own folder in its tier's volume; nothing if the tier has no certificates: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.tlsMount" -}}
{{- if include "fedstrata.hasTls" . }}
- name: tls
  mountPath: /tls
  readOnly: true
  {{- if and (has .component (list "lps" "device")) (not .root.Values.tls.follow) }}
  # A pod can read its own key, but not the keys of other pods of its tier.
  subPathExpr: {{ include "fedstrata.tlsFolder" . }}
  {{- end }}
{{- if has .component (list "gps" "lps" "device") }}
# The list of revoked certificates. It is a whole volume, so kubelet updates it even if tls.follow is false.
- name: revoked
  mountPath: /revoked
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{/* A process's folder in its tier's volume. */}}
{{- define "fedstrata.tlsFolder" -}}
{{- ternary "$(FEDSTRATA_DEVICE_NAME)" "$(FEDSTRATA_POD_NAME)" (and (eq .component "device") (eq .root.Values.device.kind "DaemonSet")) -}}
{{- end }}

{{/* The folder of a process's certificate: in a volume that kubelet updates, or in a copy from the start of the pod. */}}
{{- define "fedstrata.tlsPath" -}}
/tls{{ if and (has .component (list "lps" "device")) .root.Values.tls.follow }}/{{ include "fedstrata.tlsFolder" . }}{{ end -}}
{{- end }}

{{- define "fedstrata.tlsVolume" -}}
{{- if include "fedstrata.hasTls" . }}
- name: tls
  {{- if has .component (list "lps" "device") }}
  projected:
    defaultMode: 0440
    sources:
      {{- range (fromJson (include "fedstrata.tlsHolders" .)).holders }}
      - secret:
          name: {{ include "fedstrata.tlsSecret" (dict "root" $.root "who" .who) }}
          items:
            {{- include "fedstrata.tlsItems" (dict "in" (printf "%s/" .pod)) | nindent 12 }}
      {{- end }}
  {{- else }}
  secret:
    secretName: {{ include "fedstrata.tlsSecret" (dict "root" .root "who" (ternary "gps" "operator" (eq .component "gps"))) }}
    defaultMode: 0440
    items:
      {{- include "fedstrata.tlsItems" (dict "in" "") | nindent 6 }}
  {{- end }}
{{- if has .component (list "gps" "lps" "device") }}
- name: revoked
  secret:
    secretName: {{ include "fedstrata.tlsSecret" (dict "root" .root "who" "revoked") }}
    # `fedstrata certs revoke` or you make this Secret when a certificate is revoked.
    optional: true
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end }}

{{/* Does a tier have certificates to mount? A tier whose devices all run elsewhere has no pods. */}}
{{- define "fedstrata.hasTls" -}}
{{- if include "fedstrata.tls" .root -}}
{{- if has .component (list "gps" "run" "test") }}true{{ else if (fromJson (include "fedstrata.tlsHolders" .)).holders }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* Refuses `generated` if the certificates do not exist. A render without Kubernetes cannot check this. */}}
{{- define "fedstrata.checkTls" -}}
{{- if eq (include "fedstrata.tlsMode" .) "generated" -}}
{{- $name := include "fedstrata.tlsSecret" (dict "root" . "who" "gps") -}}
{{- $seen := lookup "v1" "Secret" .Release.Namespace "" -}}
{{- if and $seen (not (lookup "v1" "Secret" .Release.Namespace $name)) -}}
{{- fail (printf "tls.mode is generated, but namespace %s has no Secret %s: install with `fedstrata up`, which makes the certificates; with helm alone set tls.mode to cert-manager, secret or off" .Release.Namespace $name) -}}
{{- end -}}
{{- end -}}
{{- end }}
